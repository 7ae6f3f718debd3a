// Package registration keeps the Pod webhooks by which API servers call the operator for the Pods
// that SidecarSets select, and for no others. It knows API servers, watches and clocks. It does not
// know what a webhook looks like and when a dependency may go (internal/podwebhook decides), or what is
// injected (internal/inject decides).
//
// # Who does what
//
//	Shards          every replica     the newest known version of each of the 16 shards
//	Freshness       every replica     whether the snapshot has observed what a call requires; else reads by name
//	Injectors       every replica     other injectors
//	Registrar       with controllers  Register: adds or raises the dependency of a SidecarSet under review, and
//	                                  waits until API servers use it
//	prober          with controllers  which serials of shards every API server uses, and whether its calls
//	                                  are answered
//	leader          one process       sets policies, removes dependencies, restores what others edit, writes a
//	                                  shard again that an API server does not use, and judges readiness
//	ReadinessCache  the leader's      the readiness of each SidecarSet
//
// A SidecarSet goes this way: its validating webhook calls Register, which writes its dependency into the
// shard of its selectors (the webhook ignores failures) and awaits the prober. Then it is stored. The
// leader sees it stored, sets its policy in place, awaits the prober, and writes Ready. A Pod's
// call has the shard and the number of the last write that added or raised a dependency in its path:
// Freshness lets it be answered when the snapshot has observed the dependencies up to that number.
//
// A pass of the leader plans in two steps, both pure: Shard.Doubts says which dependencies only reads can
// decide about; the leader reads these SidecarSets by name; Shard.Reconcile returns the next version,
// given the decisions. It asks no API server what it uses: one goroutine asks, after ever longer pauses,
// and notes what is propagated.
//
// Every write has the resourceVersion that it was planned from as a precondition, and begins a new
// serial. So of two writers one plans again.
//
// # Invariants
//
//  1. A dependency stays until a read shows a later fact, or its time is over (the invariant tests of
//     internal/podwebhook; TestDependenciesGoAfterARead; test/protocol).
//  2. A replica answers only if it has observed, or has read after the call came, every dependency that was
//     stored then (the tests of Freshness; test/protocol).
//  3. If a review gives no warning, every API server that can be reached uses the dependency (the tests of
//     the prober and the Registrar; test/protocol).
//  4. A review changes no policy, timeout or selector of a webhook that is present (the invariant tests of
//     internal/podwebhook).
//
// # Timers
//
// The protocol has two timers, both of the leader. They run from when it first sees the last review of a
// dependency: podwebhook.StoredWithin (90 s), and podwebhook.StoredSoon (2 s) where no stored SidecarSet
// has the selectors. All other durations only decide how long a caller waits.
//
// docs/design/0005 has the reasons. test/protocol simulates all of this, with faults, from a seed.
package registration
