package inject

import "fmt"

// Refusal is an error of Compute that the owners of SidecarSets can resolve, by a change of
// the SidecarSets that it names or of their selectors.
type Refusal interface {
	error
	SidecarSets() []string
}

// FitError says that API servers would refuse the Pod with its sidecars, although each is
// valid alone. It is found before they see the Pod, because their message would name neither
// the SidecarSet nor the remedy.
type FitError struct {
	SidecarSet string
	Container  string // of the SidecarSet, as it is named in Pods; "" if the field is not of one
	Field      string // spec.containers[0].ports[0]
	Problem    string
	Remedy     string // apart from a change of the selector
	Other      string // the SidecarSet that has the other half of the problem, "" where the Pod has it
	// PodResources: the sidecar exceeds spec.resources of the Pod. API servers without the feature
	// gate PodLevelResources drop that member, and take the Pod.
	PodResources bool
}

func (e *FitError) Error() string {
	of := ""
	if e.Container != "" {
		of = fmt.Sprintf(" of container %q", e.Container)
	}
	return fmt.Sprintf("SidecarSet %q does not fit this Pod: %s%s: %s: %s, or change the SidecarSet's selector so that it leaves this Pod out",
		e.SidecarSet, e.Field, of, e.Problem, e.Remedy)
}

// SidecarSets implements Refusal.
func (e *FitError) SidecarSets() []string { return []string{e.SidecarSet, e.Other} }

// ConflictError says that a container's name is taken. Only the users can resolve that, so
// callers report it and do not retry.
type ConflictError struct {
	Kind, Name string // "container" or "init container", and its name
	First      string // the SidecarSet that brings it
	Second     string // the other SidecarSet, "" where the Pod itself has a container of that name
	PodKind    string // what the Pod has under that name, where Second is ""
}

func (e *ConflictError) Error() string {
	switch e.Second {
	case "":
		return fmt.Sprintf("SidecarSet %q brings the %s %q, and the Pod has %s of its own with that name: "+
			"rename one of them, or change the SidecarSet's selector so that it leaves this Pod out",
			e.First, e.Kind, e.Name, map[string]string{kindInit: "an ", kindContainer: "a "}[e.PodKind]+e.PodKind)
	case e.First:
		return fmt.Sprintf("SidecarSet %q brings two containers named %q: rename one of them", e.First, e.Name)
	default:
		return fmt.Sprintf("SidecarSets %q and %q both bring a container named %q: "+
			"rename it in one of them, or change their selectors so that only one selects this Pod",
			e.First, e.Second, e.Name)
	}
}

// SidecarSets implements Refusal.
func (e *ConflictError) SidecarSets() []string { return []string{e.First, e.Second} }

const (
	kindContainer = "container"
	kindInit      = "init container"
)

// RevisionError says that the recorded revision to inject does not exist, or cannot be used.
type RevisionError struct{ SidecarSet, Reference string }

func (e *RevisionError) Error() string {
	return fmt.Sprintf("SidecarSet %q names %s in spec.injectionStrategy.revision, but no usable ControllerRevision matches: "+
		"correct the name, or remove it to inject the current revision", e.SidecarSet, e.Reference)
}

// SidecarSets implements Refusal.
func (e *RevisionError) SidecarSets() []string { return []string{e.SidecarSet} }

// InvalidError says that a field of a SidecarSet cannot work in any Pod. The SidecarSet was
// stored while no webhook checked it.
type InvalidError struct{ SidecarSet, Field, Problem string }

func (e *InvalidError) Error() string {
	return fmt.Sprintf("SidecarSet %q cannot be injected: %s %s", e.SidecarSet, e.Field, e.Problem)
}

// SidecarSets implements Refusal.
func (e *InvalidError) SidecarSets() []string { return []string{e.SidecarSet} }

// MetadataError says that patchPodMetadata cannot merge an annotation.
type MetadataError struct {
	SidecarSet, Key string
	InPod           bool // the Pod's value is at fault, not the SidecarSet's
	Err             error
}

func (e *MetadataError) Error() string {
	if e.InPod {
		return fmt.Sprintf("SidecarSet %q merges JSON into annotation %q, whose value in the Pod is an Invalid JSON Document (%v): "+
			"correct the Pod's annotation, or use patchPolicy Overwrite or Retain", e.SidecarSet, e.Key, e.Err)
	}
	return fmt.Sprintf("SidecarSet %q merges an Invalid JSON Patch into annotation %q (%v): "+
		"correct the value in spec.patchPodMetadata, or use patchPolicy Overwrite or Retain", e.SidecarSet, e.Key, e.Err)
}

// SidecarSets implements Refusal.
func (e *MetadataError) SidecarSets() []string { return []string{e.SidecarSet} }

func (e *MetadataError) Unwrap() error { return e.Err }

// SizeError says that a Pod has more than injection can read, or copy into so many sidecars.
type SizeError struct{ Bytes, Most int }

func (e *SizeError) Error() string {
	return fmt.Sprintf("env, volumeMounts, volumeDevices, resources and ports of the Pod's containers have %d bytes as JSON, and the limit for these sidecars is %d: "+
		"shorten the Pod, or change the selectors of the SidecarSets so that they leave it out", e.Bytes, e.Most)
}
