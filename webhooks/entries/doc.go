// Package entries keeps the webhook entries by which API servers call the operator for the Pods
// that SidecarSets select, and for no others. It knows API servers, watches and clocks. It refuses
// to know what an entry looks like and when a need may go (internal/entry decides), and what is
// injected (internal/inject decides).
//
// # Who does what
//
//	Slots      every replica      the newest known version of each of the 16 slots
//	Knowledge  every replica      whether the snapshot holds what a call requires; else reads by name
//	Injectors     every replica      other injectors
//	Widener    with controllers   Widen: adds or raises the need of a SidecarSet under review, and
//	                              waits until API servers use it
//	prober     with controllers   which serials of slots every API server uses, and whether its calls
//	                              are answered
//	leader     one process        sets policies, removes needs, restores what others edit, writes a
//	                              slot again that an API server does not use, and judges readiness
//	Board      the leader's       the readiness of each SidecarSet
//
// A SidecarSet goes this way: its validating webhook calls Widen, which writes its need into the
// slot of its selectors (the entry ignores failures) and awaits the prober. Then it is stored. The
// leader sees it stored, sets its policy in place, awaits the prober, and writes Ready. A Pod's
// call has the slot and the number of the last write that added or raised a need in its path:
// Knowledge lets it be answered when the snapshot holds the needs up to that number.
//
// A pass of the leader plans in two steps, both pure: Slot.Doubts says which needs only reads can
// decide about; the leader reads these SidecarSets by name; Slot.Reconcile returns the next version,
// given the decisions. It asks no API server what it uses: one goroutine asks, after pauses that grow,
// and notes what is proven.
//
// Every write has the resourceVersion that it was planned from as a precondition, and begins a new
// serial. So of two writers one plans again.
//
// # Invariants
//
//  1. A need stays until a read shows a later fact, or its time is over (the law tests of
//     internal/entry; TestNeedsGoAfterARead; test/protocol).
//  2. A replica answers only if it holds, or has read after the call came, every need that was
//     stored then (the tests of Knowledge; test/protocol).
//  3. If a review gives no warning, every API server that can be reached uses the need (the tests of
//     the prober and the Widener; test/protocol).
//  4. A review changes no policy, timeout or selector of an entry that is present (the law tests of
//     internal/entry).
//
// # Timers
//
// Both timers of the protocol are the leader's own. All other durations are patience. They run from when it first sees the last review of a need:
// entry.StoredWithin (90 s), and entry.StoredSoon (2 s) where no stored SidecarSet has the selectors.
//
// docs/design/0005 has the reasons. test/protocol simulates all of this, with faults, from a seed.
package entries
