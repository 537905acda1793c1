resource "google_service_account" "relayer" {
  account_id   = var.name
  display_name = "Escrow relayer ${var.name}"
  depends_on   = [google_project_service.apis]
}

# Changes the schema. Only people act as it, no service does.
resource "google_service_account" "migrate" {
  account_id   = "${var.name}-ddl"
  display_name = "Escrow relayer ${var.name}, migrations"
  depends_on   = [google_project_service.apis]
}

locals {
  member = "serviceAccount:${google_service_account.relayer.email}"

  # Roles on the project, each with its reason. Topics and secrets are granted one by one below; there is no role to subscribe, to
  # create anything, or to read other secrets.
  project_roles = {
    "roles/cloudsql.client"         = "the connector asks for the instance's address and a client certificate"
    "roles/cloudsql.instanceUser"   = "logging in to the database by IAM"
    "roles/monitoring.metricWriter" = "the collector writes the metrics"
    "roles/logging.logWriter"       = "the collector writes its own log"
  }

  # Those of Cloud SQL hold for this fleet's instance only.
  database_roles = ["roles/cloudsql.client", "roles/cloudsql.instanceUser"]
  this_instance  = "resource.service == \"sqladmin.googleapis.com\" && resource.name == \"projects/${var.project}/instances/${local.instance_name}\""
}

resource "google_project_iam_member" "relayer" {
  for_each = local.project_roles
  project  = var.project
  role     = each.key
  member   = local.member

  dynamic "condition" {
    for_each = contains(local.database_roles, each.key) ? [1] : []
    content {
      title       = "${var.name} only"
      description = each.value
      expression  = local.this_instance
    }
  }
}

# Publishing, on its topics only.
resource "google_pubsub_topic_iam_member" "relayer" {
  for_each = google_pubsub_topic.events
  topic    = each.value.name
  role     = "roles/pubsub.publisher"
  member   = local.member
}

# Reading the values of its secrets. Those of the services with keys are not among them.
resource "google_secret_manager_secret_iam_member" "relayer" {
  for_each  = toset(local.secrets)
  secret_id = google_secret_manager_secret.this[each.key].id
  role      = "roles/secretmanager.secretAccessor"
  member    = local.member
}

# The migration account logs in to this fleet's instance, and may do nothing else.
resource "google_project_iam_member" "migrate" {
  for_each = toset(local.database_roles)
  project  = var.project
  role     = each.key
  member   = "serviceAccount:${google_service_account.migrate.email}"
  condition {
    title       = "${var.name} only"
    description = "migrations"
    expression  = local.this_instance
  }
}

# Operators act as the two accounts: what a runbook does, a service may do, and the audit log names the person.
resource "google_service_account_iam_member" "operators" {
  for_each           = { for pair in setproduct(["relayer", "migrate"], var.operators) : join(" ", pair) => pair }
  service_account_id = each.value[0] == "relayer" ? google_service_account.relayer.name : google_service_account.migrate.name
  role               = "roles/iam.serviceAccountTokenCreator"
  member             = each.value[1]
}
