terraform {
  required_version = ">= 1.5"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 7.30, < 9.0"
    }
  }
}

# No provider block here, or nobody could use this as a module with for_each over chains (README.md, "Several chains"). By itself it takes
# provider.tf, which provider.tf.example is for.

data "google_project" "this" {
  lifecycle {
    postcondition {
      condition     = self.project_id == var.project
      error_message = "The provider acts in another project than var.project: copy provider.tf.example to provider.tf, or set the project of your provider block."
    }
  }
}

resource "google_project_service" "apis" {
  for_each = toset([
    "artifactregistry.googleapis.com",
    "bigquery.googleapis.com",
    "cloudkms.googleapis.com",
    "iam.googleapis.com",
    "iamcredentials.googleapis.com", # operators act as the service account
    "logging.googleapis.com",
    "monitoring.googleapis.com",
    "pubsub.googleapis.com",
    "run.googleapis.com",
    "secretmanager.googleapis.com",
    "sqladmin.googleapis.com",
  ])
  service            = each.key
  disable_on_destroy = false # others in the project may use it
}
