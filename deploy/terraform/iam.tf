resource "google_service_account" "relayer" {
  account_id   = var.name
  display_name = "Escrow relayer ${var.name}"
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
      expression  = "resource.service == \"sqladmin.googleapis.com\" && resource.name == \"projects/${var.project}/instances/${local.instance_name}\""
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

# Reading the values of its secrets.
resource "google_secret_manager_secret_iam_member" "relayer" {
  for_each  = google_secret_manager_secret.this
  secret_id = each.value.id
  role      = "roles/secretmanager.secretAccessor"
  member    = local.member
}
