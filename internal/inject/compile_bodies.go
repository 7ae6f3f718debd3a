package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/expr"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/members"
)

// compileBodies serialises the parts that go into Pods. It reads the JSON that the user
// wrote, because the typed view lacks members that it does not know.
func (p *Compiled) compileBodies(spec map[string]any) error {
	var err error
	targets := new(expr.Targets)
	if p.initContainers, err = p.sidecars(spec, InitContainers, p.Set.Spec.InitContainers, targets); err != nil {
		return err
	}
	if p.containers, err = p.sidecars(spec, Containers, p.Set.Spec.Containers, targets); err != nil {
		return err
	}
	for _, m := range members.Injected {
		if m.Kind != members.Objects {
			continue
		}
		parts, err := p.named(spec, m.Name)
		if err != nil {
			return err
		}
		if List(m.Name) == Volumes {
			parts = referenced(parts, p.Set)
		}
		if len(parts) > 0 {
			p.objects = append(p.objects, objects{List(m.Name), parts})
		}
	}
	slices.SortStableFunc(p.initContainers, func(a, b sidecar) int { return strings.Compare(a.name, b.name) })
	return nil
}

// named serialises a list of objects that have names.
func (p *Compiled) named(spec map[string]any, list string) ([]part, error) {
	raw, _ := spec[list].([]any)
	parts := make([]part, 0, len(raw))
	for i, item := range raw {
		members, ok := item.(map[string]any)
		if !ok {
			return nil, p.fieldError(index("spec."+list, i), errors.New("must be an object, not null"))
		}
		body, err := json.Marshal(members)
		if err != nil {
			return nil, p.fieldError(index("spec."+list, i), err)
		}
		name, _ := members["name"].(string)
		parts = append(parts, part{name, body})
	}
	return parts, nil
}

// referenced returns the volumes that the containers use, in the order in which init containers
// and then containers refer to them. If the SidecarSet does not bring a volume of that name, the
// reference is to a volume of the Pod.
func referenced(volumes []part, set *appsv1beta1.SidecarSet) []part {
	var out []part
	unused := make(map[string]*part, len(volumes))
	for i := range slices.Backward(volumes) { // of equal names the first counts
		unused[volumes[i].name] = &volumes[i]
	}
	for _, list := range [][]appsv1beta1.SidecarContainer{set.Spec.InitContainers, set.Spec.Containers} {
		for i := range list {
			for name := range list[i].UsedVolumes() {
				if v := unused[name]; v != nil {
					out = append(out, *v)
					delete(unused, name)
				}
			}
		}
	}
	return out
}

// typedView decodes the object. Members that our types do not know are ignored;
// one whose value has the wrong type is named in the error.
func typedView(object map[string]any) (*appsv1beta1.SidecarSet, error) {
	set, err := hub.Typed(object)
	if member, ok := errors.AsType[*hub.MemberError](err); ok {
		return nil, &FieldError{SidecarSet: hub.NameOf(object), Field: member.Path, Err: member.Err}
	}
	if set.Name == "" {
		return nil, &FieldError{Field: "metadata.name", Err: errors.New("is missing")}
	}
	return set, nil
}

func index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// Fixed is what a compiled SidecarSet brings into every Pod, as JSON with members that this build does not
// know.
type Fixed struct {
	InitContainers, Containers, Volumes []FixedPart
}

// FixedPart is one container or volume, with its name in the SidecarSet.
type FixedPart struct {
	Name string
	Body json.RawMessage
}

// Fixed returns what the compiled SidecarSet brings into every Pod. A hot-upgrade pair is one container. A
// container lacks the members that depend on the Pod, where the SidecarSet has a policy for them.
func (p *Compiled) Fixed() Fixed {
	f := Fixed{InitContainers: p.fixed(p.initContainers), Containers: p.fixed(p.containers)}
	for _, v := range p.objectsOf(Volumes) {
		f.Volumes = append(f.Volumes, FixedPart{v.name, v.body})
	}
	return f
}

func (p *Compiled) fixed(sidecars []sidecar) []FixedPart {
	parts := make([]FixedPart, 0, len(sidecars))
	for i := range sidecars {
		s := &sidecars[i]
		part := FixedPart{s.name, s.body}
		if s.sibling != "" {
			at := slices.IndexFunc(p.hotUpgrade, func(name string) bool {
				working, _ := appsv1beta1.HotUpgradeNames(name)
				return working == s.name
			})
			if at < 0 { // the idle one
				continue
			}
			part.Name = p.hotUpgrade[at]
		}
		if s.template != nil {
			part.Body = slices.Concat([]byte{'{'}, s.template.rest, []byte{'}'})
		}
		parts = append(parts, part)
	}
	return parts
}
