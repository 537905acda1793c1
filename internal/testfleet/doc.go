// Package testfleet writes into a test's database what the instances of a fleet would have written:
// who leads, who owns which slots, what was found, what waits to be published. Its verbs say what
// happened, so that a test reads as a story and no test repeats the columns of a table.
//
//	f := testfleet.New(t, chain)
//	f.Leads(testfleet.Leader{ID: "a", Next: 1000})
//	f.FreeSlots(500, time.Hour)
//	a := f.Starts(testfleet.Instance{ID: "a", Number: 0, Total: 2, Next: 1000})
//	f.Registers(testfleet.Instance{ID: "b", Number: 1, Total: 2, Next: 1000}) // without a session: it is not alive
//	f.Queues(testfleet.Message{Slot: 7, Waits: 20 * time.Second})            // an event of slot 7 waits for 20 s
//	a.End()                                                                   // as a crash does
//
// Nothing of the product runs here: what a test of the fleet, of the pages or of retention reads
// was not written by the code under test. Tests of who takes which slot (partition) and of who
// leads (election) run the product instead, and write nothing by hand that it writes.
//
// A Fleet belongs to one test and one chain. Its methods end the test when a statement fails.
package testfleet
