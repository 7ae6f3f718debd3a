package inject

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/defaults"
	"github.com/sidecarset/operator/internal/revision"
	"github.com/sidecarset/operator/internal/selectors"
)

// fragments are the parts of a compiled SidecarSet that are the same for every Pod.
type fragments struct {
	enforced       bool      // it is injected whatever the Pod claims about it
	baseOfCanary   string    // the SidecarSet that this canary replaces, "" for others
	initContainers []sidecar // sorted by name, equal names in spec order
	containers     []sidecar // in spec order
	objects        []objects // of volumes those that are referenced, in order of first reference
	metadata       []metadataRule
	history        *historyRule  // nil where only the current revision is injected
	recordedAs     string        // the ControllerRevision of this compiled SidecarSet
	duplicate      string        // a name that two of its containers have, "" if there is none
	hotUpgrade     []string      // sidecars that become two containers, by their name in the SidecarSet
	invalid        *InvalidError // what keeps its sidecars from working in any Pod
	copies         bool          // policies of its sidecars take something from the Pod's containers
	hasPorts       bool          // a sidecar has ports
	hasNodePorts   bool          // one of them is a port of the node in any Pod
	hasNamedPorts  bool          // a Service can find one of them by its name
}

// objects are what a SidecarSet brings into a list that is not one of containers.
type objects struct {
	list  List
	parts []part
}

func (c *fragments) objectsOf(list List) []part {
	for i := range c.objects {
		if c.objects[i].list == list {
			return c.objects[i].parts
		}
	}
	return nil
}

// part is a piece of a Pod, serialised once.
type part struct {
	name string
	body json.RawMessage
}

// metadataRule is one entry of patchPodMetadata, keys sorted, without the keys
// that the operator owns.
type metadataRule struct {
	policy appsv1beta1.SidecarSetPatchPolicyType
	keys   []string
	values map[string]string
}

// FieldError says which field of a stored SidecarSet cannot be used, and what
// to do about it.
type FieldError struct {
	SidecarSet, Field string
	Err               error
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("compiling SidecarSet %q: %s: %v", e.SidecarSet, e.Field, e.Err)
}

func (e *FieldError) Unwrap() error { return e.Err }

// Compile prepares a SidecarSet (v1beta1, as served, packed or not) for
// injection. It neither keeps nor changes the object. The error holds one
// FieldError per unusable field. A compiled SidecarSet is returned together with an error if
// only its selectors are unusable; it then selects no Pod.
func Compile(object map[string]any) (*Compiled, error) {
	p, err := compileContent(object)
	if err != nil {
		return nil, err
	}
	p.history = newHistoryRule(p.Set, p.recordedAs)
	return p, p.compileSelectors()
}

// compileContent prepares all but the rules that decide which Pods get the revision.
func compileContent(object map[string]any) (*Compiled, error) {
	object, err := defaulted(object)
	if err != nil {
		return nil, err
	}
	set, err := typedView(object)
	if err != nil {
		return nil, err
	}
	p := &Compiled{Set: set, SidecarList: sidecarList(set)}
	spec, _ := object["spec"].(map[string]any)
	if err := p.compileBodies(spec); err != nil {
		return nil, err
	}
	if err := p.compileHashes(spec); err != nil {
		return nil, err
	}
	if err := p.nameRevision(spec); err != nil {
		return nil, err
	}
	p.enforced = appsv1beta1.Enforced(set.Annotations)
	p.baseOfCanary = appsv1beta1.BaseOfCanary(set.Annotations)
	p.duplicate = duplicateName(p.initContainers, p.containers)
	p.metadata = metadataRules(set.Spec.PatchPodMetadata)
	p.dropCompiled()
	p.bytes = p.estimate()
	return p, nil
}

// defaulted unpacks an object. If the SidecarSet webhook has defaulted it, defaulted
// returns it as it is. If it was stored without that webhook, defaulted returns a defaulted
// copy: its hash is then the one that the webhook will record at the next write.
func defaulted(object map[string]any) (map[string]any, error) {
	object, err := Unpack(object)
	if err != nil {
		return nil, err
	}
	metadata, _ := object["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	if text(annotations, appsv1beta1.AnnotationHash) != "" {
		return object, nil
	}
	out, err := cloneObject(object)
	if err != nil {
		_, err := typedView(object) // which fails as well, and names the field
		return nil, err
	}
	defaults.Apply(out)
	return out, nil
}

func sidecarList(set *appsv1beta1.SidecarSet) []string {
	names := make([]string, 0, len(set.Spec.Containers)+len(set.Spec.InitContainers))
	for i := range set.Spec.Containers {
		names = append(names, set.Spec.Containers[i].Name)
	}
	for i := range set.Spec.InitContainers {
		if set.Spec.InitContainers[i].IsNative() {
			names = append(names, set.Spec.InitContainers[i].Name)
		}
	}
	slices.Sort(names)
	return names
}

// duplicateName finds a name that is present twice among init containers and
// containers. Objects that were stored without our webhook may have one.
func duplicateName(lists ...[]sidecar) string {
	var seen keyed
	for _, list := range lists {
		for i := range list {
			if seen.has(list[i].name) {
				return list[i].name
			}
			seen.add(element{key: list[i].name})
		}
	}
	return ""
}

func metadataRules(entries []appsv1beta1.SidecarSetPatchPodMetadata) []metadataRule {
	var rules []metadataRule
	for _, entry := range entries {
		keys := slices.Sorted(maps.Keys(entry.Annotations))
		keys = slices.DeleteFunc(keys, appsv1beta1.OwnsPodAnnotation)
		if len(keys) > 0 {
			rules = append(rules, metadataRule{entry.PatchPolicy, keys, entry.Annotations})
		}
	}
	return rules
}

// compileHashes takes the hashes that the SidecarSet webhook recorded, and
// computes what is missing.
func (p *Compiled) compileHashes(spec map[string]any) error {
	p.Hash = p.Set.Annotations[appsv1beta1.AnnotationHash]
	p.HashWithoutImage = p.Set.Annotations[appsv1beta1.AnnotationHashWithoutImage]
	if p.Hash != "" && p.HashWithoutImage != "" {
		return nil
	}
	withImage, withoutImage, err := revision.Hashes(spec)
	if err != nil {
		return p.fieldError("spec", err)
	}
	p.Hash, p.HashWithoutImage = cmp.Or(p.Hash, withImage), cmp.Or(p.HashWithoutImage, withoutImage)
	return nil
}

// Revision returns the name of the ControllerRevision of this compiled SidecarSet, as Pods record it.
func (p *Compiled) Revision() string { return p.recordedAs }

// nameRevision finds the name of the ControllerRevision of this compiled SidecarSet. Right after a
// change, the status still names the ControllerRevision of the previous revision, so the new
// name is computed from the revision.
func (p *Compiled) nameRevision(spec map[string]any) error {
	status := &p.Set.Status
	p.recordedAs = status.LatestRevision
	if status.ObservedGeneration == p.Set.Generation {
		return nil
	}
	data, err := revision.Data(spec)
	if err != nil {
		return p.fieldError("spec", err)
	}
	collisions := int32(0)
	if status.CollisionCount != nil {
		collisions = *status.CollisionCount
	}
	p.recordedAs = revision.Name(p.Set.Name, revision.Suffix(data, collisions))
	return nil
}

func (p *Compiled) compileSelectors() error {
	p.Selector, p.NamespaceSelector = labels.Nothing(), labels.Nothing()
	spec := &p.Set.Spec
	pods, podErr := metav1.LabelSelectorAsSelector(spec.Selector)
	if selectors.IsEmpty(spec.Selector) {
		podErr = errors.New("selects no Pods because it is missing or empty; name the Pods with matchLabels or matchExpressions")
	}
	namespaces, namespaceErr := metav1.LabelSelectorAsSelector(cmp.Or(spec.NamespaceSelector, &metav1.LabelSelector{})) // empty: everything
	if podErr == nil && namespaceErr == nil {
		p.Selector, p.NamespaceSelector = pods, namespaces
		return nil
	}
	return errors.Join(p.fieldError("spec.selector", podErr), p.fieldError("spec.namespaceSelector", namespaceErr))
}

// fieldError is the error of a field; nil if err is nil.
func (p *Compiled) fieldError(field string, err error) error {
	if err == nil {
		return nil
	}
	return &FieldError{SidecarSet: p.Set.Name, Field: field, Err: err}
}
