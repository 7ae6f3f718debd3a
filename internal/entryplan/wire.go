package entryplan

import (
	"strconv"
	"strings"
	"time"
)

// Paths of the webhook server that entries for Pods name.
const (
	// PathPods answers from the snapshot that the replica has.
	PathPods = "/pods"
	// PathPodsFresh first makes sure that the snapshot holds every SidecarSet
	// that was stored when the request came.
	PathPodsFresh = "/pods/fresh"
	// PathBarrier, followed by a configuration's name and a serial, tells which
	// configuration an API server uses; see BarrierPath.
	PathBarrier = "/barrier/"
)

// A barrier probe is a ConfigMap, created under dry-run in the operator's namespace, that
// carries LabelBarrier with the name of a configuration object. That object's barrier entry
// selects it, and the webhook answers with the serial in the entry's path, as
// AnnotationBarrier. So the answer tells which version of the configuration the API server
// had in force.
const (
	LabelBarrier      = "sidecarset.io/barrier"
	AnnotationBarrier = "sidecarset.io/barrier-serial"
)

// StaticBarrier is the name in the path of the barrier entry that an administrator
// keeps with --pod-webhook=static. Its serial never changes: it tells that calls are
// answered, and nothing else.
const StaticBarrier = "static"

// BarrierPath is the path of the barrier entry of a configuration object.
func BarrierPath(configuration string, serial int64) string {
	return PathBarrier + configuration + "/" + strconv.FormatInt(serial, 10)
}

// ParseBarrierPath is the inverse of BarrierPath; false for any other path.
func ParseBarrierPath(path string) (configuration string, serial int64, ok bool) {
	rest, ok := strings.CutPrefix(path, PathBarrier)
	configuration, number, _ := strings.Cut(rest, "/")
	serial, err := strconv.ParseInt(number, 10, 64)
	if !ok || configuration == "" || err != nil || serial < 0 || strconv.FormatInt(serial, 10) != number {
		return "", 0, false
	}
	return configuration, serial, true
}

// Trust is for how long, by default, a replica answers on PathPods from its snapshot
// after the beginning of its last check. It checks twice in that time.
const Trust = 20 * time.Second

// clocksAgree is by how much the two clocks of a machine may differ about a duration.
const clocksAgree = time.Second

// Trusted reports whether a replica trusts a check that began so long ago, by its
// monotonic clock, which may stop while the machine is suspended, and by its wall clock,
// which may be set. If the two disagree, the replica trusts neither: on a machine that was
// suspended while its wall clock was set back, both show too little.
func Trusted(monotonic, wall, trust time.Duration) bool {
	return (wall-monotonic).Abs() <= clocksAgree && monotonic <= trust && wall <= trust
}

// AnnotationFormat holds the number of the format that an object with entries has. An
// object without it has the first format.
const AnnotationFormat = "sidecarset.io/format"

// Readable reports whether annotations are of an object in a format that this version of
// the operator can read. The operator does not change other objects, and does not rely on
// them.
func Readable(annotations map[string]string) bool {
	value, ok := annotations[AnnotationFormat]
	if !ok {
		return true
	}
	number, err := strconv.Atoi(value)
	return err == nil && number <= format
}
