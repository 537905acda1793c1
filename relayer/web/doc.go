// Package web is the HTTP server of a process: probes, metrics, a status page for people, and a read-only API. A
// Front listens and has the token; a Server has the pages and the API of one chain. With one chain these are at /:
//
//	/            the status page: rendered here, works without scripts; /live keeps it up to date with server-sent events
//	/healthz     the process is alive; asks nothing and nobody
//	/readyz      the session, the database and the node are well; else 503 and which is not, and why
//	/metrics     Prometheus
//	/status      what the page shows, as JSON
//	/escrows     the registry, page by page;  /escrows/{address}  one escrow with its record and timeline
//	/events      stored events, page by page
//	/openapi.yaml  the description of all of the above, which a test compares with the handlers
//
// With several chains each has all that below /chains/ and its id, and / shows them at a glance:
//
//	/readyz/{chain}  the readiness of one chain; /readyz is ready when all chains are
//	/metrics         those of the process and of all chains
//
// What the instance knows of itself comes from a Source and costs nothing. What the fleet is comes
// from the database, read in one place (board), at most every two seconds however many people look,
// and every half minute while nobody does. When the database is gone the page shows what was read
// last and says how old it is.
//
// Nothing here writes. Texts of errors pass through Config.Mask, since they may quote an RPC or database URL.
package web
