resource "google_secret_manager_secret" "this" {
  for_each  = toset(concat(local.secrets, local.key_secrets))
  secret_id = "${var.name}-${each.key}"
  labels    = { app = "escrow-relayer" }
  replication {
    auto {}
  }
  depends_on = [google_project_service.apis]
}

# No password in it: the login is by IAM.
resource "google_secret_manager_secret_version" "database_url" {
  secret      = google_secret_manager_secret.this["database-url"].id
  secret_data = "postgresql://${urlencode(local.database_user)}@/${var.database_name}"
}

# What the collector scrapes. Not a secret; this is where it is read from.
resource "google_secret_manager_secret_version" "monitoring" {
  secret      = google_secret_manager_secret.this["monitoring"].id
  secret_data = file("${path.module}/monitoring.yaml")
}

# The RPC URLs carry API keys. Their value never passes through Terraform, whose state would keep it:
#   printf %s "$RPC_URLS" | gcloud secrets versions add NAME-rpc-urls --data-file=-
# Nor do the senders file and the policy: whoever can change them can grant anything within the limits of the senders.

locals {
  secrets = ["database-url", "rpc-urls", "monitoring"] # of every service

  secret_versions = {
    "database-url" = google_secret_manager_secret_version.database_url.version
    "monitoring"   = google_secret_manager_secret_version.monitoring.version
    "rpc-urls"     = var.rpc_urls_version

    "keys-database-url" = one(google_secret_manager_secret_version.keys_database_url[*].version)
    "senders"           = var.senders_version
    "policy"            = var.policy_version
  }
}
