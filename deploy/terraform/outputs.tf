output "service_account" {
  value       = google_service_account.relayer.email
  description = "For rights elsewhere."
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

output "keys" {
  value       = { for name, key in google_kms_crypto_key.sender : name => "${key.id}/cryptoKeyVersions/1" }
  description = "Key version of each sender: `kms` in the senders file."
}

output "keys_account" {
  value       = one(google_service_account.keys[*].email)
  description = "Account of the services with keys; null without senders."
}

output "keys_database_user" {
  value       = local.key_user
  description = "Login of the services with keys; needs the rights of database_user."
}
