# Alert policies for Managed Service for Prometheus, made from the rules that Prometheus itself uses: an expression is written once.
# Only this file's locals touch the rules, and they need no provider, so that a test can evaluate them. Every expression names this chain, so that
# two chains in one project do not both alert for either; and this fleet, for a second workspace that follows the same chain.

locals {
  unit_seconds = { s = 1, m = 60, h = 3600 }

  template = file("${path.module}/../prometheus/alerts.yaml.tmpl")
  selector = "chain_id=\"$chain\""
  fleet    = "${local.selector},fleet=\"${var.name}\""
  whole    = replace(local.template, "$fresh", regex("(?m)^# [$]fresh = (.+)$", local.template)[0])
  rules    = replace(replace(local.whole, local.selector, local.fleet), "$chain", tostring(var.chain_id))

  alerts = merge([
    for group in yamldecode(local.rules).groups : {
      for rule in group.rules : rule.alert => {
        group    = group.name
        interval = group.interval
        query    = rule.expr
        # "2m" to "120s"; a rule without `for` fires at its first evaluation.
        duration = format("%ds", try(tonumber(regex("^[0-9]+", rule.for)) * local.unit_seconds[regex("[smh]$", rule.for)], 0))
        severity = upper(rule.labels.severity)
        summary  = rule.annotations.summary
        runbook  = replace(rule.annotations.runbook_url, "/[{][{].*[}][}]/", "README.md") # the incident's labels name the page
      }
    }
  ]...)
}
