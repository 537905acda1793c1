resource "google_monitoring_alert_policy" "relayer" {
  for_each              = local.alerts
  display_name          = "${var.name}: ${each.key}"
  combiner              = "OR"
  severity              = each.value.severity
  notification_channels = each.value.severity == "CRITICAL" ? var.page_channels : var.ticket_channels
  user_labels           = { app = "escrow-relayer" }

  conditions {
    display_name = each.key
    condition_prometheus_query_language {
      query                     = each.value.query
      duration                  = each.value.duration
      evaluation_interval       = each.value.interval
      rule_group                = each.value.group
      alert_rule                = each.key
      disable_metric_validation = true # at the first apply no metric has been written yet
    }
  }

  documentation {
    subject   = each.value.summary
    content   = "${each.value.summary}\n\nRunbook: ${each.value.runbook}"
    mime_type = "text/markdown"
    links {
      display_name = "Runbook"
      url          = each.value.runbook
    }
  }

  alert_strategy {
    auto_close = "1800s"
  }

  depends_on = [google_project_service.apis]
}

resource "google_monitoring_dashboard" "relayer" {
  dashboard_json = jsonencode({
    displayName  = "Escrow relayer (${var.name})"
    mosaicLayout = { columns = 24, tiles = local.tiles }
  })
  depends_on = [google_project_service.apis]
}
