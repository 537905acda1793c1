variable "project" {
  type        = string
  description = "Google Cloud project of everything here."
}

variable "region" {
  type        = string
  default     = "us-central1"
  description = "Region of services and database. Publishers of one ordering key must be in one region."
}

variable "name" {
  type        = string
  default     = "escrow-relayer"
  description = "Prefix of all names. One fleet per name: another chain gets a name of its own, by for_each or a workspace."

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,23}[a-z0-9]$", var.name))
    error_message = "Use 2 to 25 lower-case letters, digits and dashes, beginning with a letter: service accounts allow 30."
  }
}

variable "image" {
  type        = string
  description = "Image of the relayer, best by digest: REGION-docker.pkg.dev/PROJECT/REPOSITORY/escrow-relayer@sha256:…"
}

variable "rpc_urls_version" {
  type        = string
  default     = "1"
  description = "Version of the secret NAME-rpc-urls that the services use. To change the provider, add a version, try it, and set it here."
  validation {
    condition     = can(regex("^[1-9][0-9]*$", var.rpc_urls_version))
    error_message = "Use a number. latest takes a new version before anybody has tried it, and a disabled version causes an outage."
  }
}

variable "services" {
  type        = bool
  default     = true
  description = "Create the services. False for the first apply: the secret of the RPC URLs has no version yet, and the database login has no rights."
}

variable "partitions" {
  type        = number
  default     = 3
  description = "Services, one per partition. A running fleet is resized service by service: deploy/runbooks/repartition.md."

  validation {
    condition     = var.partitions >= 1 && var.partitions <= 100
    error_message = "Use 1 to 100."
  }
}

variable "strategy" {
  type        = string
  default     = "modulo"
  description = "PARTITION_STRATEGY: modulo, or consistent, with which a resize moves few escrows."

  validation {
    condition     = contains(["modulo", "consistent"], var.strategy)
    error_message = "Use modulo or consistent."
  }
}

variable "chain_id" {
  type        = number
  description = "Chain id, as eth_chainId has it."
}

variable "factory_address" {
  type        = string
  description = "Address of the EscrowFactory; several as ADDRESS@START_BLOCK with commas between them. The first one names the fleet in its metrics and alerts."

  validation {
    condition     = can(regex("^0x[0-9a-fA-F]{40}(@[0-9]+)?(,0x[0-9a-fA-F]{40}(@[0-9]+)?)*$", var.factory_address))
    error_message = "Use 0x and 40 hexadecimal digits, several as ADDRESS@START_BLOCK with commas between them."
  }
}

variable "start_block" {
  type        = number
  description = "Block in which the factory was deployed, or an earlier one. A later one loses events."
}

variable "env" {
  type        = map(string)
  default     = {}
  description = "Further variables of the relayer, for example CONFIRMATIONS, or PUBSUB_ENDPOINT where services run in several regions. Never RPC_URL, RPC_URLS, DATABASE_URL or SESSION_DATABASE_URL: anybody who may look at a service can read them."

  validation {
    condition     = length(setintersection(keys(var.env), ["RPC_URL", "RPC_URLS", "DATABASE_URL", "SESSION_DATABASE_URL"])) == 0
    error_message = "These carry secrets: they belong in Secret Manager."
  }

  validation {
    condition     = length(setintersection(keys(var.env), ["INSTANCE_ID", "PARTITION_NUMBER", "TOTAL_PARTITIONS", "PORT"])) == 0
    error_message = "Each service has its own, which the module or Cloud Run sets."
  }

  validation {
    condition     = length(setintersection(keys(var.env), ["SENDERS_FILE", "COMMANDS_POLICY_FILE", "COMMANDS_SUBSCRIPTION_ID", "COMMANDS_HTTP", "COMMANDS_PORT", "REPLIES_TOPIC_ID", "KEEPER_SENDER"])) == 0
    error_message = "Every service would have them: key_services says which have the keys."
  }
}

variable "cpu" {
  type        = string
  default     = "1"
  description = "CPUs of each relayer."
}

variable "memory" {
  type        = string
  default     = "512Mi"
  description = "Memory of each relayer; the second-generation environment takes no less than 512Mi."
}

variable "collector_image" {
  type        = string
  default     = "us-docker.pkg.dev/cloud-ops-agents-artifacts/cloud-run-gmp-sidecar/cloud-run-gmp-sidecar:1.2.0"
  description = "Google's Prometheus sidecar for Cloud Run."
}

variable "collector_cpu" {
  type        = string
  default     = "1"
  description = "CPUs of each collector."
}

variable "collector_memory" {
  type        = string
  default     = "512Mi"
  description = "Memory of each collector."
}

variable "topic" {
  type        = string
  default     = "settlement.events.v1"
  description = "Topic of EscrowDeployed, Approved, EscrowReleased and EscrowRefunded. It is made here: fleets of one project have topics of their own."
}

variable "retractions_topic" {
  type        = string
  default     = "settlement.retractions.v1"
  description = "Topic of retractions, a topic of its own: consumers of events do not expect them."
}

variable "other_events_topic" {
  type        = string
  default     = ""
  description = "Topic of the events that EVENT_NAMES adds; empty: none. Some consumers nack names that they do not know, for ever."
}

variable "topic_retention" {
  type        = string
  default     = "604800s"
  description = "How long topics keep messages for a seek: at least as long as the database's point-in-time recovery reaches back."
}

variable "example_subscription" {
  type        = bool
  default     = true
  description = "Create a subscription as consumers should have theirs, with a dead-letter topic."
}

variable "bigquery_dataset" {
  type        = string
  default     = ""
  description = "Dataset for a BigQuery subscription; empty: none."
}

variable "database_instance" {
  type        = string
  default     = ""
  description = "Use this Cloud SQL instance instead of the one made here: after a restore, or for several fleets. Connection name PROJECT:REGION:INSTANCE."
}

variable "database_name" {
  type        = string
  default     = "relayer"
  description = "Database on the instance. Chains may share one."
}

variable "database_tier" {
  type        = string
  default     = "db-custom-2-7680"
  description = "Machine type of the database."
}

variable "database_max_connections" {
  type        = number
  default     = 200
  description = "Of the server. Each instance takes its pool (DB_MAX_CONNS) and one session, twice that during a rollout."
}

variable "backup_location" {
  type        = string
  default     = "us"
  description = "Where backups are kept: another region than the database's, or a multi-region. A backup beside the database is lost with it."
}

variable "private_network" {
  type        = string
  default     = ""
  description = "VPC network, projects/P/global/networks/N, with private services access: the database then has a private address only. Empty: a public one that only Google's connectors reach."
}

variable "private_subnetwork" {
  type        = string
  default     = ""
  description = "Subnetwork of private_network from which the services reach the database."
}

variable "operators" {
  type        = list(string)
  default     = []
  description = "Members, as user:you@example.com, who may act as the services' account and as the migration account. The runbooks need both."
}

variable "deletion_protection" {
  type        = bool
  default     = true
  description = "Refuse to delete the database and the services."
}

variable "page_channels" {
  type        = list(string)
  default     = []
  description = "Notification channels of alerts with severity critical."
}

variable "ticket_channels" {
  type        = list(string)
  default     = []
  description = "Notification channels of alerts with severity warning."
}

variable "senders" {
  type        = list(string)
  default     = []
  description = "Accounts that commands act through, by name: each gets a key in Cloud KMS. Empty: no commands, and nothing is created for them."

  validation {
    condition     = alltrue([for s in var.senders : can(regex("^[a-z][a-z0-9-]{0,62}$", s))])
    error_message = "Use lower-case letters, digits and dashes, beginning with a letter."
  }
}

variable "key_services" {
  type        = number
  default     = 0
  description = "How many of the services have the keys: the first ones. 0 until the senders file and the policy are in Secret Manager; then 2 or more, so that another one goes on when one dies."

  validation {
    condition     = var.key_services >= 0 && var.key_services <= 100
    error_message = "Use 0 to 100."
  }
}

variable "senders_version" {
  type        = string
  default     = "1"
  description = "Version of the secret NAME-senders, the file SENDERS_FILE."
  validation {
    condition     = can(regex("^[1-9][0-9]*$", var.senders_version))
    error_message = "Use a number: latest follows a new version before anybody has read it."
  }
}

variable "policy_version" {
  type        = string
  default     = "1"
  description = "Version of the secret NAME-policy, the file COMMANDS_POLICY_FILE."
  validation {
    condition     = can(regex("^[1-9][0-9]*$", var.policy_version))
    error_message = "Use a number: latest follows a new version before anybody has read it."
  }
}

variable "commands_topic" {
  type        = string
  default     = "settlement.commands.v1"
  description = "Topic on which requesters publish commands."
}

variable "replies_topic" {
  type        = string
  default     = "settlement.command-answers.v1"
  description = "Topic of the answers."
}

variable "requesters" {
  type        = list(string)
  default     = []
  description = "Members, as serviceAccount:settlement@PROJECT.iam.gserviceaccount.com, who may publish commands and read answers. What they may ask for is in the policy, by the key that they sign with."
}

variable "keeper_sender" {
  type        = string
  default     = ""
  description = "Address of the sender that releases escrows which are approved and due; empty: none does."

  validation {
    condition     = var.keeper_sender == "" || can(regex("^0x[0-9a-fA-F]{40}$", var.keeper_sender))
    error_message = "Use 0x and 40 hexadecimal digits."
  }
}
