package inject

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
)

// List is a list in a Pod's spec that injection adds to.
type List string

// The lists of a Pod's spec, in the order in which a Plan is applied.
const (
	InitContainers   List = "initContainers"
	Containers       List = "containers"
	Volumes          List = "volumes"
	ImagePullSecrets List = "imagePullSecrets"
)

// Plan says what injection would do to a Pod, and why each candidate was
// taken or skipped. An empty Plan is a valid answer. Bodies are shared with the
// Programs: read them, never change them.
type Plan struct {
	// Removals are containers that the Pod says are those of a SidecarSet with the
	// annotation sidecarset.io/enforce; insertions take their place. They have no
	// Body. Their indexes, which fall in each list, are those of the Pod as it was
	// submitted.
	Removals []Edit
	// Replacements are containers of ours that are out of date, and volumes of an
	// enforced SidecarSet. Their indexes are those of the lists without Removals.
	Replacements []Edit
	// Insertions follow the replacements. The index of each is its place in the
	// list once all insertions before it are done.
	Insertions []Edit
	// Annotations are the ones to set; they differ from the Pod's.
	Annotations map[string]string

	// Injected names the SidecarSets that take part in this Plan, in name order.
	Injected []string
	// Skipped names the other candidates, in name order, with the reason.
	Skipped []Skip
	// Notes are what a user may want to be told although the Pod is injected.
	Notes []Note

	absent       absentLists
	podHas       map[string]string // the Pod's annotations as submitted
	noAnnotation bool              // the Pod has no annotations member to add to
}

// absentLists says which lists the Pod lacks (or has empty), so that they are
// added whole.
type absentLists struct{ initContainers, containers, volumes, imagePullSecrets bool }

// Edit puts one object into a list of the Pod's spec.
type Edit struct {
	SidecarSet string
	List       List
	Index      int
	Name       string
	Body       json.RawMessage
}

// SkipReason says why a SidecarSet that selects a Pod leaves it alone. The
// values are fixed words, fit for a metric's label.
type SkipReason string

// The reasons for skipping a SidecarSet.
const (
	// SkipPaused: injectionStrategy.paused is set.
	SkipPaused SkipReason = "Paused"
	// SkipCanary: a canary of this SidecarSet selects the Pod and takes its place.
	SkipCanary SkipReason = "ReplacedByCanary"
	// SkipInjected: the Pod carries this revision already.
	SkipInjected SkipReason = "AlreadyInjected"
	// SkipMirrorPod: the Pod mirrors a static Pod, which the kubelet reads from a file.
	SkipMirrorPod SkipReason = "MirrorPod"
)

// Skip is one SidecarSet that selects the Pod and adds nothing to it.
type Skip struct {
	SidecarSet string
	Reason     SkipReason
	By         string // the canary, for SkipCanary
}

// Note is a remark on what one SidecarSet does to the Pod.
type Note struct{ SidecarSet, Message string }

// Empty says that the Plan leaves the Pod as it is.
func (p Plan) Empty() bool {
	return len(p.Removals) == 0 && len(p.Replacements) == 0 && len(p.Insertions) == 0 && len(p.Annotations) == 0
}

// Operations renders the plan as JSON patch operations in application order.
// Each insertion is one "add" at an explicit index, so members of the user's
// containers that this build does not know are never rewritten. A list that the
// Pod lacks is added whole.
func (p Plan) Operations() []jsonpatch.Operation {
	ops := make([]jsonpatch.Operation, 0, len(p.Removals)+len(p.Replacements)+len(p.Insertions)+len(p.Annotations))
	for _, e := range p.Removals {
		ops = append(ops, jsonpatch.NewOperation("remove", e.path(), nil))
	}
	for _, e := range p.Replacements {
		ops = append(ops, jsonpatch.NewOperation("replace", e.path(), e.Body))
	}
	for group := range insertionGroups(p.Insertions) {
		if !p.absent.has(group[0].List) {
			for _, e := range group {
				ops = append(ops, jsonpatch.NewOperation("add", e.path(), e.Body))
			}
			continue
		}
		whole := make([]json.RawMessage, len(group))
		for i, e := range group {
			whole[i] = e.Body
		}
		ops = append(ops, jsonpatch.NewOperation("add", "/spec/"+string(group[0].List), whole))
	}
	if len(p.Annotations) == 0 {
		return ops
	}
	if p.noAnnotation {
		return append(ops, jsonpatch.NewOperation("add", annotationsPath, maps.Clone(p.Annotations)))
	}
	for _, key := range slices.Sorted(maps.Keys(p.Annotations)) {
		ops = append(ops, jsonpatch.NewOperation(p.verb(key), annotationsPath+"/"+escapePointer(key), p.Annotations[key]))
	}
	return ops
}

const annotationsPath = "/metadata/annotations"

// verb is the operation that sets an annotation.
func (p Plan) verb(key string) string {
	if _, present := p.podHas[key]; present {
		return "replace"
	}
	return "add"
}

func (e Edit) path() string {
	return "/spec/" + string(e.List) + "/" + strconv.Itoa(e.Index)
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// escapePointer writes a key as one step of a JSON pointer.
func escapePointer(key string) string { return pointerEscapes.Replace(key) }

// insertionGroups yields the runs of insertions into the same list.
func insertionGroups(edits []Edit) func(yield func([]Edit) bool) {
	return func(yield func([]Edit) bool) {
		for start := 0; start < len(edits); {
			end := start + 1
			for end < len(edits) && edits[end].List == edits[start].List {
				end++
			}
			if !yield(edits[start:end]) {
				return
			}
			start = end
		}
	}
}

func (a absentLists) has(list List) bool {
	switch list {
	case InitContainers:
		return a.initContainers
	case Containers:
		return a.containers
	case Volumes:
		return a.volumes
	default:
		return a.imagePullSecrets
	}
}

func (a *absentLists) mark(list List, absent bool) {
	if list == InitContainers {
		a.initContainers = absent
	} else {
		a.containers = absent
	}
}

// Apply returns a copy of a Pod, given as JSON values, with the plan carried
// out. It is for those who hold a whole Pod: the webhook sends Operations. The
// Pod has to be the one that the plan was computed for.
func (p Plan) Apply(pod map[string]any) (map[string]any, error) {
	out, err := cloneObject(pod)
	if err != nil {
		return nil, fmt.Errorf("copying the Pod: %w", err)
	}
	spec := member(out, "spec")
	for _, e := range p.Removals {
		list := items(spec, e.List)
		if e.Index >= len(list) {
			return nil, fmt.Errorf("removing %s[%d]: the Pod has %d", e.List, e.Index, len(list))
		}
		spec[string(e.List)] = slices.Delete(list, e.Index, e.Index+1)
	}
	for _, e := range p.Replacements {
		body, list := map[string]any{}, items(spec, e.List)
		if err := decodeJSON(e.Body, &body); err != nil {
			return nil, fmt.Errorf("decoding %s %q of SidecarSet %q: %w", e.List, e.Name, e.SidecarSet, err)
		}
		if e.Index >= len(list) {
			return nil, fmt.Errorf("replacing %s[%d]: the Pod has %d", e.List, e.Index, len(list))
		}
		list[e.Index] = body
	}
	for _, e := range p.Insertions {
		body, list := map[string]any{}, items(spec, e.List)
		if err := decodeJSON(e.Body, &body); err != nil {
			return nil, fmt.Errorf("decoding %s %q of SidecarSet %q: %w", e.List, e.Name, e.SidecarSet, err)
		}
		if e.Index > len(list) {
			return nil, fmt.Errorf("inserting at %s[%d]: the Pod has %d", e.List, e.Index, len(list))
		}
		spec[string(e.List)] = slices.Insert(list, e.Index, any(body))
	}
	if len(p.Annotations) > 0 {
		annotations := member(member(out, "metadata"), "annotations")
		for key, value := range p.Annotations {
			annotations[key] = value
		}
	}
	return out, nil
}

// member returns an object's member that is an object, making it if need be.
func member(object map[string]any, name string) map[string]any {
	m, ok := object[name].(map[string]any)
	if !ok || m == nil {
		m = map[string]any{}
		object[name] = m
	}
	return m
}

func items(spec map[string]any, list List) []any {
	all, _ := spec[string(list)].([]any)
	return all
}
