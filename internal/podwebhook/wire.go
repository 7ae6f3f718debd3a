package podwebhook

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// Shards is the number of configuration objects. They are in the manifests; no process may
// create or delete one.
const Shards = 16

// LabelConfiguration marks the shards.
const LabelConfiguration = "sidecarset.io/pod-webhooks"

// Labelled selects the shards.
func Labelled() labels.Selector {
	return labels.SelectorFromSet(labels.Set{LabelConfiguration: "true"})
}

const configurationPrefix = "sidecarset-pods-"

// ConfigurationName is the name of the object that is the shard of that index.
func ConfigurationName(shard int) string { return configurationPrefix + strconv.Itoa(shard) }

// ShardNumber is the inverse of ConfigurationName; false for any other name.
func ShardNumber(name string) (shard int, ok bool) {
	number, ok := strings.CutPrefix(name, configurationPrefix)
	if !ok {
		return 0, false
	}
	return parseShard(number)
}

func parseShard(number string) (shard int, ok bool) {
	shard, err := strconv.Atoi(number)
	return shard, err == nil && shard >= 0 && shard < Shards && strconv.Itoa(shard) == number
}

const (
	// PathPods is the path of the webhook that an administrator keeps with --pod-webhook=static.
	// A call by it does not say what must be known.
	PathPods = "/pods"
	// PathShards begins the paths of the operator's own webhooks; see PodsPath.
	PathShards = "/pods/"
	// PathProbe begins the paths of probe webhooks; see ProbePath.
	PathProbe = "/probe/"
	// StaticProbe is the last part of the path of the probe webhook that an administrator
	// keeps with --pod-webhook=static. It tells that calls are answered, and nothing else.
	StaticProbe = "static"
)

// PodsPath is the path of all Pod webhooks of a shard. It changes only when a dependency is added or
// raised, because an API server has connections of its own for each path.
func PodsPath(shard int, number uint64) string {
	return PathShards + strconv.Itoa(shard) + "/" + strconv.FormatUint(number, 10)
}

// ParsePodsPath is the inverse of PodsPath; false for any other path.
func ParsePodsPath(path string) (shard int, number uint64, ok bool) {
	rest, ok := strings.CutPrefix(path, PathShards)
	if !ok {
		return 0, 0, false
	}
	index, digits, _ := strings.Cut(rest, "/")
	shard, ok = parseShard(index)
	number, err := strconv.ParseUint(digits, 10, 64)
	return shard, number, ok && err == nil && strconv.FormatUint(number, 10) == digits
}

// ProbePath is the path of the probe webhook of a shard. It never changes.
func ProbePath(shard int) string { return PathProbe + strconv.Itoa(shard) }

// ParseProbePath returns the label that the probe webhook with that path selects a probe by;
// false for any other path.
func ParseProbePath(path string) (label string, ok bool) {
	rest, ok := strings.CutPrefix(path, PathProbe)
	if ok && rest == StaticProbe {
		return LabelStaticProbe, true
	}
	shard, is := parseShard(rest)
	return ProbeLabel(shard), ok && is
}

// A propagation probe is a ConfigMap, created under dry-run in the operator's namespace. For each
// shard that it asks about it has the label ProbeLabel with a serial. The shard's probe webhook
// selects it if the API server uses that serial or one of the few that followed. The webhook
// answers with an annotation of the same key and value. So the answer proves which shards the
// API server uses at the serial that was asked for, or later.
const (
	probeLabel = "sidecarset.io/probe-"
	// LabelStaticProbe is that label in static mode. Any value does.
	LabelStaticProbe = probeLabel + StaticProbe
)

// ProbeLabel is the label of probes about a shard.
func ProbeLabel(shard int) string { return probeLabel + strconv.Itoa(shard) }
