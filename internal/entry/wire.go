package entry

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// Slots is the number of configuration objects. They are in the manifests; no process may
// create or delete one.
const Slots = 16

// LabelConfiguration marks the slots.
const LabelConfiguration = "sidecarset.io/pod-webhooks"

// Labelled selects the slots.
func Labelled() labels.Selector {
	return labels.SelectorFromSet(labels.Set{LabelConfiguration: "true"})
}

const configurationPrefix = "sidecarset-pods-"

// ConfigurationName is the name of the object that is the slot of that index.
func ConfigurationName(slot int) string { return configurationPrefix + strconv.Itoa(slot) }

// Index is the inverse of ConfigurationName; false for any other name.
func Index(name string) (slot int, ok bool) {
	number, ok := strings.CutPrefix(name, configurationPrefix)
	if !ok {
		return 0, false
	}
	return parseSlot(number)
}

func parseSlot(number string) (slot int, ok bool) {
	slot, err := strconv.Atoi(number)
	return slot, err == nil && slot >= 0 && slot < Slots && strconv.Itoa(slot) == number
}

const (
	// PathPods is the path of the entry that an administrator keeps with --pod-webhook=static.
	// A call by it does not say what must be known.
	PathPods = "/pods"
	// PathSlots begins the paths of the operator's own entries; see PodsPath.
	PathSlots = "/pods/"
	// PathBarrier begins the paths of barrier entries; see BarrierPath.
	PathBarrier = "/barrier/"
	// StaticBarrier is the last part of the path of the barrier entry that an administrator
	// keeps with --pod-webhook=static. It tells that calls are answered, and nothing else.
	StaticBarrier = "static"
)

// PodsPath is the path of all Pod entries of a slot. It changes only when a need is added or
// raised, because an API server has connections of its own for each path.
func PodsPath(slot int, number uint64) string {
	return PathSlots + strconv.Itoa(slot) + "/" + strconv.FormatUint(number, 10)
}

// ParsePodsPath is the inverse of PodsPath; false for any other path.
func ParsePodsPath(path string) (slot int, number uint64, ok bool) {
	rest, ok := strings.CutPrefix(path, PathSlots)
	if !ok {
		return 0, 0, false
	}
	index, digits, _ := strings.Cut(rest, "/")
	slot, ok = parseSlot(index)
	number, err := strconv.ParseUint(digits, 10, 64)
	return slot, number, ok && err == nil && strconv.FormatUint(number, 10) == digits
}

// BarrierPath is the path of the barrier entry of a slot. It never changes.
func BarrierPath(slot int) string { return PathBarrier + strconv.Itoa(slot) }

// ParseBarrierPath returns the label that the barrier entry with that path selects a probe by;
// false for any other path.
func ParseBarrierPath(path string) (label string, ok bool) {
	rest, ok := strings.CutPrefix(path, PathBarrier)
	if ok && rest == StaticBarrier {
		return LabelStaticBarrier, true
	}
	slot, is := parseSlot(rest)
	return BarrierLabel(slot), ok && is
}

// A barrier probe is a ConfigMap, created under dry-run in the operator's namespace. For each
// slot that it asks about it has the label BarrierLabel with a serial. The slot's barrier entry
// selects it if the API server uses that serial or one of the few that followed. The webhook
// answers with an annotation of the same key and value. So the answer proves which slots the
// API server uses at the serial that was asked for, or later.
const (
	barrierLabel = "sidecarset.io/barrier-"
	// LabelStaticBarrier is that label in static mode. Any value does.
	LabelStaticBarrier = barrierLabel + StaticBarrier
)

// BarrierLabel is the label of probes about a slot.
func BarrierLabel(slot int) string { return barrierLabel + strconv.Itoa(slot) }
