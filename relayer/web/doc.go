// Package web is the HTTP server of a process: probes, metrics, a status page for people, and a read-only API. A
// Front listens and has the token; a Server has the pages and the API of one chain. With one chain these are at /:
//
//	/            the status page: rendered here, works without scripts; with them it asks for itself again
//	/healthz     the process is alive; independent of everything else (the Front's, as the next two)
//	/readyz      every check of fleet.Self passes (session, database, node, storing), each with its reason; else 503
//	/metrics     Prometheus
//	/status      the instance and the fleet, as JSON
//	/openapi.yaml  the description of all of the above, which a test compares with the handlers
//
// With several chains each has the page, /status and /openapi.yaml below /chains/ and its id, and / shows them at a
// glance:
//
//	/readyz/{chain}  the readiness of one chain; /readyz is ready when all chains are
//	/metrics         those of the process and of all chains
//
// The instance's knowledge of itself comes from a Source and costs nothing. The fleet is as a fleet.Reader has read it
// last: nothing but the rows of one escrow is read for a request. The page is rendered at most once a second, for all
// viewers together. While the database is gone it shows the last reading and its age.
//
// The package only reads. Texts of errors pass through Config.Mask, since they may quote an RPC or
// database URL.
package web
