package inject

import (
	"encoding/json"
	"fmt"
	"slices"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// broughtVolumes are the volumes of SidecarSets that a Pod gets, and the SidecarSet of each.
type broughtVolumes struct {
	keyed
	by []*target
}

// addVolumes plans the volumes of the SidecarSets. If the Pod or an earlier SidecarSet has a
// volume of that name, addVolumes takes that for the same thing, unless an enforced SidecarSet
// brings one: the first of these counts. Volumes that differ are told.
func (c *computation) addVolumes() error {
	for t := range c.injecting() {
		if t.enforced {
			c.bringVolumes(t)
		}
	}
	next := len(c.pod.Volumes)
	for t := range c.injecting() {
		c.bringVolumes(t)
		for _, v := range t.volumes {
			brought, at := c.volumes.find(v.name), c.volumeAt(v.name)
			switch {
			case brought < 0: // the Pod keeps its own, which may be something better than an emptyDir
				if kindOf(v.body) != "emptyDir" && kindOf(c.pod.Volumes[at].Body) != kindOf(v.body) {
					c.tellOf(t, NoticeVolume, "the Pod has another volume %s of its own", quoted(v.name))
				}
			case c.volumes.by[brought] != t:
				if kindOf(c.volumes.list[brought].body) != kindOf(v.body) {
					c.tellOf(t, NoticeVolume, "SidecarSet %q brings another volume %s", c.volumes.by[brought].Name(), quoted(v.name))
				}
			case at >= 0:
				if err := c.replaceVolume(t, at, v); err != nil {
					return err
				}
			default:
				c.insert(t, Volumes, len(c.pod.Volumes), next, v)
				next++
			}
		}
	}
	return nil
}

// bringVolumes notes the volumes of a SidecarSet that the Pod gets.
func (c *computation) bringVolumes(t *target) {
	for _, v := range t.volumes {
		if (t.enforced || c.volumeAt(v.name) < 0) && !c.volumes.has(v.name) {
			c.volumes.add(element{v.name, v.body})
			c.volumes.by = append(c.volumes.by, t)
		}
	}
}

// replaceable are the kinds of volumes whose loss an app survives, or that its author may
// have used to get around an enforced SidecarSet. All others hold data that comes from outside
// the Pod and its node.
var replaceable = []string{"emptyDir", "hostPath", "downwardAPI", "image", "gitRepo"}

// replaceVolume puts a volume of an enforced SidecarSet in the place of one of the Pod, but not
// in that of data that the app needs.
func (c *computation) replaceVolume(t *target, at int, v part) error {
	was := c.pod.Volumes[at].Body
	kind, becomes := kindOf(was), kindOf(v.body)
	if (kind != becomes || claimOf(was) != claimOf(v.body)) && !slices.Contains(replaceable, kind) {
		return &FitError{SidecarSet: t.Name(), Field: "spec.volumes",
			Problem: fmt.Sprintf("volume %q, of kind %s, would take the place of a volume of the Pod of kind %s, whose data the Pod's containers would lose, because annotation %s is set",
				v.name, becomes, quoted(kind), appsv1beta1.AnnotationEnforce),
			Remedy: "give the volume of the SidecarSet another name"}
	}
	if kind != becomes {
		c.tellOf(t, NoticeVolume, "volume %s takes the place of the Pod's own, which is of another kind", quoted(v.name))
	}
	c.plan.Replacements = append(c.plan.Replacements, Edit{SidecarSet: t.Name(), List: Volumes, Index: at, Name: v.name, Body: v.body})
	return nil
}

// volumeAt is the place of the Pod's volume of that name; -1 if it has none.
func (c *computation) volumeAt(name string) int {
	return slices.IndexFunc(c.pod.Volumes, func(v VolumeView) bool { return v.Name == name })
}

// fitVolume checks that the Pod has a volume after injection.
func (c *computation) fitVolume(s placed, d *volumeDemand) error {
	if c.volumes.has(d.name) || c.volumeAt(d.name) >= 0 {
		return nil
	}
	return s.misfit(d.member, fmt.Sprintf("neither the SidecarSet nor the Pod brings volume %q", d.name), "declare it in spec.volumes of the SidecarSet")
}

// kindOf returns the member of a volume that says where its content is.
func kindOf(volume []byte) string {
	var members map[string]json.RawMessage
	if utiljson.Unmarshal(volume, &members) != nil {
		return ""
	}
	kind := ""
	for member, value := range members {
		if member != "name" && string(value) != "null" && (kind == "" || member < kind) {
			kind = member
		}
	}
	if kind == "" {
		return "emptyDir" // API servers fill it in
	}
	return kind
}

// claimOf returns the name of the PersistentVolumeClaim of a volume.
func claimOf(volume []byte) string {
	var v struct {
		PersistentVolumeClaim struct {
			ClaimName string `json:"claimName"`
		} `json:"persistentVolumeClaim"`
	}
	_ = utiljson.Unmarshal(volume, &v) // kindOf has read it
	return v.PersistentVolumeClaim.ClaimName
}
