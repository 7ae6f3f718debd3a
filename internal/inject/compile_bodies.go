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
)

// compileBodies serialises the parts that go into Pods. It reads the JSON that the user
// wrote, because the typed view lacks members that it does not know.
func (p *Program) compileBodies(spec map[string]any) error {
	var err error
	targets := new(expr.Targets)
	if p.initContainers, err = p.sidecars(spec, "initContainers", p.Set.Spec.InitContainers, targets); err != nil {
		return err
	}
	if p.containers, err = p.sidecars(spec, "containers", p.Set.Spec.Containers, targets); err != nil {
		return err
	}
	volumes, err := p.named(spec, "volumes")
	if err != nil {
		return err
	}
	p.volumes = referenced(volumes, p.Set)
	if p.pullSecrets, err = p.named(spec, "imagePullSecrets"); err != nil {
		return err
	}
	slices.SortStableFunc(p.initContainers, func(a, b sidecar) int { return strings.Compare(a.name, b.name) })
	return nil
}

// named serialises a list of objects that have names.
func (p *Program) named(spec map[string]any, list string) ([]part, error) {
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

// referenced returns the volumes that the containers mount, in the order in which init
// containers and then containers refer to them. If the SidecarSet does not bring a volume
// of that name, the reference is to a volume of the Pod.
func referenced(volumes []part, set *appsv1beta1.SidecarSet) []part {
	var out []part
	unused := make(map[string]*part, len(volumes))
	for i := range slices.Backward(volumes) { // of equal names the first counts
		unused[volumes[i].name] = &volumes[i]
	}
	add := func(name string) {
		if v := unused[name]; v != nil {
			out = append(out, *v)
			delete(unused, name)
		}
	}
	for _, list := range [][]appsv1beta1.SidecarContainer{set.Spec.InitContainers, set.Spec.Containers} {
		for i := range list {
			for _, mount := range list[i].VolumeMounts {
				add(mount.Name)
			}
			for _, device := range list[i].VolumeDevices {
				add(device.Name)
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
