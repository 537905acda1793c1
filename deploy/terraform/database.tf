resource "google_sql_database_instance" "this" {
  count               = var.database_instance == "" ? 1 : 0
  name                = var.name
  region              = var.region
  database_version    = "POSTGRES_16"
  deletion_protection = var.deletion_protection
  depends_on          = [google_project_service.apis]

  settings {
    edition = "ENTERPRISE"
    # Cloud SQL itself refuses to delete it, whoever asks; deletion_protection above only stops Terraform. If it is deleted all the same, its
    # backups stay.
    deletion_protection_enabled = var.deletion_protection
    retain_backups_on_delete    = true
    tier                        = var.database_tier
    availability_type           = "REGIONAL" # a second machine with the same disk: a failover loses nothing
    disk_type                   = "PD_SSD"
    disk_autoresize             = true

    # Only through Google's connectors, which check IAM and bring a certificate. The public address answers nobody else, and no
    # network is authorised.
    connector_enforcement = "REQUIRED"
    ip_configuration {
      ipv4_enabled    = var.private_network == ""
      private_network = var.private_network == "" ? null : var.private_network
      ssl_mode        = "TRUSTED_CLIENT_CERTIFICATE_REQUIRED"
    }

    backup_configuration {
      enabled                        = true
      location                       = var.backup_location
      point_in_time_recovery_enabled = true
      transaction_log_retention_days = 7
      backup_retention_settings {
        retained_backups = 14
        retention_unit   = "COUNT"
      }
    }

    maintenance_window {
      day          = 2 # Tuesday: people are at work
      hour         = 9
      update_track = "stable"
    }

    insights_config {
      query_insights_enabled  = true
      record_application_tags = false
    }

    dynamic "database_flags" {
      for_each = local.database_flags
      content {
        name  = database_flags.key
        value = database_flags.value
      }
    }
  }
}

locals {
  database_flags = {
    "cloudsql.iam_authentication" = "on"
    "max_connections"             = tostring(var.database_max_connections)

    # A client that is gone without having closed its connection (a host that died, a network that failed) must not keep its locks: 10 s +
    # 3 x 5 s instead of two hours. The relayer's session sets its own, shorter ones; these are for all other connections.
    "tcp_keepalives_idle"     = "10"
    "tcp_keepalives_interval" = "5"
    "tcp_keepalives_count"    = "3"

    # A person's open transaction must not hold up claims and the clean-up of dead rows. Milliseconds.
    "idle_in_transaction_session_timeout" = "60000"

    # What waits for a lock longer than deadlock_timeout, and what takes longer than a second, is in the log.
    "log_lock_waits"             = "on"
    "log_min_duration_statement" = "1000"
  }

  # project:region:instance; for the connector, and for the conditions of the roles.
  connection_name = var.database_instance == "" ? one(google_sql_database_instance.this[*].connection_name) : var.database_instance
  instance_name   = element(split(":", local.connection_name), length(split(":", local.connection_name)) - 1)

  # The IAM login of a service account lacks the suffix.
  database_user  = trimsuffix(google_service_account.relayer.email, ".gserviceaccount.com")
  migration_user = trimsuffix(google_service_account.migrate.email, ".gserviceaccount.com")
}

resource "google_sql_database" "this" {
  name            = var.database_name
  instance        = local.instance_name
  deletion_policy = "ABANDON" # terraform destroy leaves the data
}

resource "google_sql_user" "relayer" {
  name            = local.database_user
  instance        = local.instance_name
  type            = "CLOUD_IAM_SERVICE_ACCOUNT" # no password
  deletion_policy = "ABANDON"                   # it has rights in the database, which would be lost
}

# Owns the tables; the services' login may only read and write rows.
resource "google_sql_user" "migrate" {
  name            = local.migration_user
  instance        = local.instance_name
  type            = "CLOUD_IAM_SERVICE_ACCOUNT"
  deletion_policy = "ABANDON"
}
