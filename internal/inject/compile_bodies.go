package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// compileBodies serialises what goes into Pods from the JSON that the user
// wrote, in which members survive that the typed view does not know.
func (p *Program) compileBodies(spec map[string]any) error {
	var err error
	if p.initContainers, err = p.sidecars(spec, "initContainers", p.Set.Spec.InitContainers); err != nil {
		return err
	}
	if p.containers, err = p.sidecars(spec, "containers", p.Set.Spec.Containers); err != nil {
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
	slices.SortStableFunc(p.initContainers, byName)
	return nil
}

func byName(a, b sidecar) int { return strings.Compare(a.name, b.name) }

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

// referenced returns the volumes that the containers mount, in the order in
// which init containers and then containers refer to them. A reference to a
// volume that the SidecarSet does not bring is to one of the Pod's.
func referenced(volumes []part, set *appsv1beta1.SidecarSet) []part {
	var out []part
	add := func(name string) {
		same := func(v part) bool { return v.name == name }
		if i := slices.IndexFunc(volumes, same); i >= 0 && !slices.ContainsFunc(out, same) {
			out = append(out, volumes[i])
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
	set := &appsv1beta1.SidecarSet{}
	if err := decode(object, set); err != nil {
		return nil, &FieldError{SidecarSet: objectName(object), Field: locate(object), Err: err}
	}
	if set.Name == "" {
		return nil, &FieldError{Field: "metadata.name", Err: errors.New("is missing")}
	}
	return set, nil
}

func objectName(object map[string]any) string {
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	return name
}

func decode(object any, into *appsv1beta1.SidecarSet) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return utiljson.Unmarshal(text, into)
}

// locate returns the path of the smallest part of an object that makes decoding
// fail. It decodes part by part, which is for errors only.
func locate(object map[string]any) string {
	path := locateIn(object, func(part any) bool { return decode(part, &appsv1beta1.SidecarSet{}) != nil })
	return strings.TrimPrefix(path, ".")
}

func locateIn(value any, fails func(any) bool) string {
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			alone := func(v any) bool { return fails(map[string]any{key: v}) }
			if alone(value[key]) {
				return "." + key + locateIn(value[key], alone)
			}
		}
	case []any:
		alone := func(v any) bool { return fails([]any{v}) }
		for i, item := range value {
			if alone(item) {
				return index("", i) + locateIn(item, alone)
			}
		}
	}
	return ""
}

func index(path string, i int) string { return fmt.Sprint(path, "[", strconv.Itoa(i), "]") }
