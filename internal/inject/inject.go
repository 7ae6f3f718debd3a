// Package inject is the engine: it compiles SidecarSets into compiled SidecarSets and computes, for one
// Pod, what injection would do and why. Equal inputs give equal plans. It knows no client,
// no clock and no random number. The caller looks up everything that needs the API server
// before Compute runs.
package inject

import (
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// Compiled is one revision of a SidecarSet, compiled once and read by any number
// of goroutines at the same time. Nothing in it may be changed.
type Compiled struct {
	// Set is the typed view of the object, for decisions. It is defaulted if the object was
	// stored without its webhook. It lacks parts that only go into Pods: its containers
	// have no more than names, images, restart policies, and the policies of injection and
	// upgrade. Bodies that go into Pods never come from it, because it lacks members that
	// are newer than our libraries.
	Set *appsv1beta1.SidecarSet

	// Selector chooses Pods; it selects nothing where the object has no usable
	// selector.
	Selector labels.Selector
	// NamespaceSelector chooses namespaces by label; Everything() where the
	// object has none.
	NamespaceSelector labels.Selector

	// Hash and HashWithoutImage are what Pods injected by this compiled SidecarSet record.
	// They come from the object's annotations, and are computed where those are
	// missing.
	Hash, HashWithoutImage string

	// SidecarList is the sorted list of names that a Pod's hash annotation
	// records: all containers and the native sidecars among the init containers.
	// It is empty, not nil, where there are none.
	SidecarList []string

	fragments // fragments ready to be spliced into a Pod

	bytes int
}

// Bytes estimates the memory that the compiled SidecarSet takes.
func (p *Compiled) Bytes() int { return p.bytes }

// Name is the SidecarSet's name.
func (p *Compiled) Name() string { return p.Set.Name }

// PodView is what decides about an admitted Pod, read from the request without
// decoding the Pod as a typed object.
type PodView struct {
	Labels      map[string]string
	Annotations map[string]string // nil: the Pod has none, so the member has to be added whole

	InitContainers, Containers []ContainerView
	Volumes                    []VolumeView // in Pod order; nil where the member is absent
	ImagePullSecrets           []string     // names, in the same way
	Spec                       SpecView
}

// SpecView has the members of the Pod's spec that decide whether API servers take the Pod
// together with sidecars. The zero value is a Pod that has none of them.
type SpecView struct {
	HostNetwork bool
	OS          string // os.name
	// Resources are as submitted; nil where they are absent or null, or where API servers drop
	// them: see FitError.PodResources.
	Resources json.RawMessage
}

// VolumeView is one volume of the admitted Pod. Body is the JSON in which it was submitted.
type VolumeView struct {
	Name string
	Body json.RawMessage
}

// ContainerView is what decides about one container of the admitted Pod. Members that are raw
// are the JSON in which they were submitted, so that injection hands on the parts of them that
// this build does not know; nil if they are absent or null.
type ContainerView struct {
	Name, Image string
	// Injected is true when the first env named IS_INJECTED has the literal
	// value "true".
	Injected bool
	EnvFrom  bool // the container has variables from envFrom

	Env, VolumeMounts, VolumeDevices, Resources, Ports json.RawMessage
	RestartPolicy                                      string
}

// isNative reports whether an init container is a native sidecar.
func (v *ContainerView) isNative() bool {
	return v.RestartPolicy == string(corev1.ContainerRestartPolicyAlways)
}

// Input is everything a decision depends on. It holds values, never clients.
type Input struct {
	Pod        PodView
	Candidates []Candidate // SidecarSets that select the Pod, in name order
	Now        time.Time   // stamped into the Pod's annotations

	// Ended returns why no client waits for the plan any more; nil while one does. Compute then
	// returns that error soon. If it is nil, Compute does not end early.
	Ended func() error

	// Known reports whether a SidecarSet of that name exists. Records of others
	// that the Pod brings along (a template copied from a running Pod) are
	// dropped when the records are written. Nil keeps all of them.
	Known func(sidecarSet string) bool
}

// Candidate is one SidecarSet that selects the Pod. History is set if Current refers to a
// revision that exists. Draw, in [0,1), decides a Partial policy for a Pod for
// which it has not been decided before.
type Candidate struct {
	Current, History *Compiled
	Draw             float64
}
