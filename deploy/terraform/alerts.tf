# Alert policies for Managed Service for Prometheus, made from the rules that Prometheus itself uses: an expression is written once.
# Only this file's locals touch the rules, and they need no provider, so that a test can evaluate them.

locals {
  unit_seconds = { s = 1, m = 60, h = 3600 }

  alerts = merge([
    for group in yamldecode(file("${path.module}/../prometheus/alerts.yaml")).groups : {
      for rule in group.rules : rule.alert => {
        group    = group.name
        interval = group.interval
        query    = rule.expr
        # "2m" to "120s"; a rule without `for` fires at its first evaluation.
        duration = format("%ds", try(tonumber(regex("^[0-9]+", rule.for)) * local.unit_seconds[regex("[smh]$", rule.for)], 0))
        severity = upper(rule.labels.severity)
        summary  = rule.annotations.summary
        runbook  = rule.annotations.runbook_url
      }
    }
  ]...)
}
