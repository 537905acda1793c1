# The Grafana dashboard for Cloud Monitoring: the same panels, expressions and places. Only locals here, and no provider, so that
# a test can evaluate them.

locals {
  panels = jsondecode(file("${path.module}/../grafana/dashboard.json")).panels

  # Grafana's variables, as constants: five minutes for rates, all chains and fleets.
  queries = {
    for p in local.panels : tostring(p.id) => [
      for t in try(p.targets, []) : replace(replace(replace(replace(t.expr, "$__rate_interval", "5m"), "$__range", "1h"), "$chain", ".*"), "$fleet", ".*")
    ]
  }

  # Three lists, since the widgets differ in their attributes.
  tiles = concat(
    [for p in local.panels : {
      xPos   = p.gridPos.x, yPos = p.gridPos.y, width = p.gridPos.w, height = p.gridPos.h
      widget = { title = p.title, sectionHeader = { dividerBelow = true } }
    } if p.type == "row"],
    [for p in local.panels : {
      xPos = p.gridPos.x, yPos = p.gridPos.y, width = p.gridPos.w, height = p.gridPos.h
      widget = {
        title     = p.title
        scorecard = { timeSeriesQuery = { prometheusQuery = local.queries[tostring(p.id)][0] } }
      }
    } if p.type == "stat"],
    [for p in local.panels : {
      xPos = p.gridPos.x, yPos = p.gridPos.y, width = p.gridPos.w, height = p.gridPos.h
      widget = {
        title   = p.title
        xyChart = { dataSets = [for q in local.queries[tostring(p.id)] : { plotType = "LINE", timeSeriesQuery = { prometheusQuery = q } }] }
      }
    } if !contains(["row", "stat"], p.type)],
  )
}
