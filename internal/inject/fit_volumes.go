package inject

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// fitVolume checks that the Pod has the volume of a demand after injection, and as what. The
// SidecarSet may bring it, and still get that of the Pod or of another SidecarSet.
func (c *computation) fitVolume(t *target, s *sidecar, d *volumeDemand) error {
	body, whose := c.volume(t, d.name)
	if body == nil {
		return s.misfit(t, d.member, fmt.Sprintf("neither the SidecarSet nor the Pod brings volume %q", d.name), "declare it in spec.volumes of the SidecarSet")
	}
	kind := kindOf(body)
	if d.kinds == nil || slices.Contains(d.kinds, kind) {
		return nil
	}
	return s.misfit(t, d.member, fmt.Sprintf("volume %q is %s, of kind %q, and %s needs one of kind %s", d.name, whose, cut(kind), d.reason, strings.Join(d.kinds, " or ")),
		"give the volume of the SidecarSet another name")
}

// volume returns the volume of that name that the Pod has after injection, and whose it is;
// nil if the Pod has none.
func (c *computation) volume(asks *target, name string) (body json.RawMessage, whose string) {
	brings := c.enforcers()[name]
	if at := c.volumeAt(name); at >= 0 && brings == nil {
		return c.pod.Volumes[at].Body, "that of the Pod"
	}
	for i := 0; i < len(c.targets) && brings == nil; i++ {
		if t := &c.targets[i]; t.skip == "" && t.bringsVolume(name) != nil {
			brings = t
		}
	}
	if brings == nil {
		return nil, ""
	}
	if brings == asks {
		return brings.bringsVolume(name), "that of the SidecarSet"
	}
	return brings.bringsVolume(name), fmt.Sprintf("that of SidecarSet %q", brings.Name())
}

func (t *target) bringsVolume(name string) json.RawMessage {
	for i := range t.volumes {
		if t.volumes[i].name == name {
			return t.volumes[i].body
		}
	}
	return nil
}

// kindOf returns the member of a volume that says where its content is.
func kindOf(volume json.RawMessage) string {
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

// replaceable are the kinds of volumes whose loss an app survives, or that its author may
// have used to get around an enforced SidecarSet. All others hold data that comes from outside
// the Pod and its node.
var replaceable = []string{"emptyDir", "hostPath", "downwardAPI", "image", "gitRepo"}

// fitReplacedVolumes refuses to put a volume of an enforced SidecarSet in the place of data
// that the app needs.
func (c *computation) fitReplacedVolumes() error {
	for i := range c.plan.Replacements {
		e := &c.plan.Replacements[i]
		if e.List != Volumes {
			continue
		}
		was, is := c.pod.Volumes[e.Index].Body, e.Body
		kind, becomes := kindOf(was), kindOf(is)
		if kind == becomes && claimOf(was) == claimOf(is) || slices.Contains(replaceable, kind) {
			continue
		}
		return &FitError{SidecarSet: e.SidecarSet, Field: "spec.volumes",
			Problem: fmt.Sprintf("volume %q, of kind %s, would take the place of a volume of the Pod of kind %q, whose data the Pod's containers would lose, because annotation %s is set",
				e.Name, becomes, cut(kind), appsv1beta1.AnnotationEnforce),
			Remedy: "give the volume of the SidecarSet another name"}
	}
	return nil
}

// claimOf returns the name of the PersistentVolumeClaim of a volume.
func claimOf(volume json.RawMessage) string {
	var v struct {
		PersistentVolumeClaim struct {
			ClaimName string `json:"claimName"`
		} `json:"persistentVolumeClaim"`
	}
	_ = utiljson.Unmarshal(volume, &v) // kindOf has read it
	return v.PersistentVolumeClaim.ClaimName
}

// fitShared checks what a sidecar takes from the Pod's containers: these mounts, and, with
// them, all that it has.
func (s placed) fitShared(shared []element, all *lists) error {
	for _, m := range shared {
		if !s.template.privileged && bytes.Contains(m.body, []byte(corev1.MountPropagationBidirectional)) && propagates(m) {
			return s.misfit(s.target, ".shareVolumePolicy", fmt.Sprintf("a mount at %q of the Pod's containers, which the sidecar shares, has mountPropagation Bidirectional, and only a privileged container may have that", cut(m.key)),
				"set securityContext.privileged of the sidecar, or remove shareVolumePolicy")
		}
	}
	if len(all.mounts.list) == 0 || len(all.devices.list) == 0 {
		return nil
	}
	for _, m := range all.mounts.list {
		if name := nameOf(m); all.volumes.has(name) {
			return s.misfit(s.target, ".shareVolumePolicy", fmt.Sprintf("with what it shares, the sidecar has volume %q both as a mount and as a block device", cut(name)),
				"remove shareVolumePolicy or shareVolumeDevicePolicy")
		}
	}
	return nil
}

func propagates(mount element) bool {
	var m struct {
		MountPropagation string `json:"mountPropagation"`
	}
	return utiljson.Unmarshal(mount.body, &m) == nil && m.MountPropagation == string(corev1.MountPropagationBidirectional)
}

func nameOf(e element) string {
	var members elementMembers
	_ = utiljson.Unmarshal(e.body, &members) // it was read before
	return members.Name
}
