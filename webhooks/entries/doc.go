// Package entries keeps the webhook entries by which API servers call the operator for
// the Pods that SidecarSets select, and for no others. It holds both halves of each
// protocol between a replica, the leader and the API servers. It knows API servers, clocks
// and informers. It refuses to know which entries are needed and in which objects they are
// (internal/entryplan decides this), and what is injected (internal/inject decides this).
//
// # Three ways to be late
//
// A Pod that directly follows its SidecarSet is created without its sidecars, silently, if
//
//  1. the entry is not written yet. So the replica that admits the SidecarSet writes it
//     before the SidecarSet is stored (Keeper.Widen);
//  2. an API server does not use the entry yet. Each object with entries has a serial and
//     a barrier entry whose path carries it. A dry-run create of a ConfigMap returns the
//     serial that the API server uses (barrier, AnswerBarrier);
//  3. the replica that answers does not know the SidecarSet yet. So the entry first calls
//     /pods/fresh, where the replica compares its snapshot with what is stored before it
//     answers (Freshness). Before a replica or the leader writes an entry, it records the
//     names of the SidecarSets that are on their way, so that replicas look up only a few.
//
// # States of an entry
//
//	          review, no entry with these selectors
//	absent ───────────────────────────────────────────► provisional
//	  ▲  │                                               │       │
//	  │  │ leader sees a SidecarSet stored               │       │ 1 s after the last
//	  │  ▼                                               │       │ review: absent
//	  │ fresh ◄──────────────────────────────────────────┘
//	  │  │ ▲    leader sees the SidecarSet stored
//	  │  │ │
//	  │  │ │ review, or the leader sees new content
//	  │  ▼ │
//	  │ settled      W after the last write for an admission
//	  │  │
//	  │  │ last SidecarSet gone (from fresh, too)
//	  │  ▼
//	  └─ orphan      W after the last review; W after the leader closed it at the latest
//
// The leader removes a provisional entry after the barrier has shown that the entry that
// replaces it is in force. Any Pod can send a review, and so cause a provisional entry. So
// such an entry makes API servers ignore failures, and wait for one second at most. Fresh
// and settled entries have the failure policy and the timeout of their SidecarSets. Fresh
// entries have the path /pods/fresh, settled ones /pods.
//
// # Who writes what
//
//	replica   puts entries on the fresh path, and adds provisional ones
//	leader    everything else: adds, settles, closes, removes, restores, isolates
//	both      record the name of a SidecarSet before they write its entry
//	leader    removes names
//
// Every write has the resourceVersion of the object that it was planned from as a
// precondition, and gives the object a new serial. The serial of the last write for an
// admission is recorded per entry (sidecarset.io/widened).
//
// # Clocks
//
// Each duration is measured by one process, on its own clock:
//
//	replica   trusts its snapshot for 20 s after the beginning of its last check
//	          (monotonic and wall clock, which must agree within 1 s), checks every 10 s
//	leader    W = 90 s (a SidecarSet on its way into storage) + 20 s (trust) + 10 s
//	          (clocks), from when it sees the last write for an admission, for the entry
//	          and for the recorded name; up to an eighth of W and 8 s more, so that entries
//	          which are due at different moments are written together, and few at a time
//	leader    1 s for a provisional entry, 20 s until a place for one comes back
//
// # Why no Pod is missed
//
// Take a Pod whose request an API server gets after it uses the entry of a stored
// SidecarSet. If the entry is on the fresh path, the replica that answers has done one of
// two things since the request came. It has listed the SidecarSets, and its snapshot holds
// this one. Or it has read the recorded names: the SidecarSet is among them, or was stored
// before the check by which the replica trusts its snapshot. If the entry is on /pods, W
// has passed since the last write for an admission. The SidecarSet was stored within 90 s
// of its review, so every replica that trusts its snapshot began a check after that. A
// replica that cannot check refuses.
//
// The leader writes Ready only after two things. It has itself written the entry on the
// fresh path for that content. And every API server that can be reached uses that serial, so
// that none uses an older object, with the entry on /pods, any more. If a leader was replaced
// meanwhile, its write fails on the precondition. The leader settles and removes entries only
// if a live list shows that it knows all stored SidecarSets.
//
// docs/design/0005, 0008 and 0011 have the reasons; test/protocol simulates all of this, with
// faults, from a seed.
package entries
