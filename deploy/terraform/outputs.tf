output "service_account" {
  value       = google_service_account.relayer.email
  description = "For `escrow-relayer plan manifests`, and for rights elsewhere."
}

output "database_instance" {
  value       = local.connection_name
  description = "Connection name: CLOUDSQL_INSTANCE."
}

output "database_user" {
  value       = local.database_user
  description = "Login of the services; needs rights in the database once, see deploy/README.md."
}

output "migration_user" {
  value       = local.migration_user
  description = "Login that owns the tables, see deploy/README.md."
}

output "migration_account" {
  value       = google_service_account.migrate.email
  description = "Account that operators act as to change the schema."
}

output "rpc_urls_secret" {
  value       = google_secret_manager_secret.this["rpc-urls"].secret_id
  description = "Add the RPC URLs, comma-separated, as a version of it."
}
