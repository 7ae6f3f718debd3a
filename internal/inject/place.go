package inject

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

// placement is what the second step decides. Render reads it, and record adds to its annotations.
type placement struct {
	lists       [2]podList // init containers, containers
	injects     bool       // containers are added, replaced or removed
	volumes     []Edit     // of SidecarSets, which are added
	replaced    []Edit     // volumes of the Pod, with those of enforced SidecarSets
	others      []Edit     // to the lists that are neither of containers nor volumes
	brought     broughtVolumes
	annotations podstate.AnnotationEdits
}

// podList is one of the Pod's two lists of containers, with the sidecars that belong into it.
type podList struct {
	list       List
	containers []ContainerView
	kind       string
	sidecars   []placed
}

// placed is one sidecar on its way into a list of the Pod.
type placed struct {
	*sidecar
	target *target
	// at is where it goes: its place, or that of the container before which it is
	// added, in the list as submitted.
	at   int
	does action
}

// action is what becomes of a sidecar.
type action int

const (
	stays    action = iota // the Pod has it
	extended               // the Pod has it, and gets what it lacks
	replaces               // it takes the place of an earlier one
	inserted               // not in the Pod yet
)

// place decides where everything goes: init containers, sorted by name over all SidecarSets;
// containers, in the order of SidecarSets and then of their specs; volumes and pull secrets.
func place(s *selected, notes *notes) (placement, error) {
	inits, apps := s.sidecars(InitContainers), s.sidecars(Containers)
	slices.SortStableFunc(inits, func(a, b placed) int { return strings.Compare(a.name, b.name) })
	p := placement{
		lists:       [2]podList{{InitContainers, s.pod.InitContainers, kindInit, inits}, {Containers, s.pod.Containers, kindContainer, apps}},
		annotations: podstate.AnnotationEdits{Has: s.pod.Annotations},
	}
	if err := s.patchMetadata(&p.annotations); err != nil {
		return p, err
	}
	s.nameDefaultContainer(&p.annotations)
	p.injects = len(s.removals) > 0
	for i := range p.lists {
		in, other := &p.lists[i], &p.lists[1-i]
		for j := range in.sidecars {
			if err := s.decide(&in.sidecars[j], in, other); err != nil {
				return p, err
			}
			p.injects = p.injects || in.sidecars[j].does >= replaces
		}
		position(in.containers, in.sidecars)
	}
	if !p.injects {
		return p, nil
	}
	p.others = s.placePullSecrets()
	return p, s.placeVolumes(&p, notes)
}

// sidecars are those that belong into a list.
func (s *selected) sidecars(list List) (sidecars []placed) {
	for one := range sidecarsOf(s.takingPart()) {
		if one.list == list {
			sidecars = append(sidecars, one)
		}
	}
	return sidecars
}

// decide finds out what becomes of a sidecar, whose name the Pod may have already.
func (s *selected) decide(one *placed, in, other *podList) error {
	one.at = s.containerAt(in.list, one.name)
	switch {
	case one.target.skip == SkipInjected:
		if one.at >= 0 && one.template != nil && one.target.grows() {
			one.does = extended
		}
		return nil
	case one.at < 0:
		if s.containerAt(other.list, one.name) >= 0 { // a name is unique over both lists
			return &ConflictError{Kind: in.kind, Name: one.name, First: one.target.Name(), PodKind: other.kind}
		}
		one.does = inserted
		return nil
	}
	found := &in.containers[one.at]
	switch {
	case !found.Injected:
		return &ConflictError{Kind: in.kind, Name: one.name, First: one.target.Name(), PodKind: in.kind}
	case !one.target.fresh && (!one.target.sameHash || found.Image != one.image):
		one.does = replaces
	case one.template != nil && one.target.grows():
		one.does = extended
	}
	return nil
}

// position finds where the new sidecars go. Those of earlier calls are first and
// last in the Pod, unless other webhooks have added containers there since. The
// new ones go between them, in order.
func position(containers []ContainerView, sidecars []placed) {
	ours := make([][2]bool, len(containers)) // the Pod has one of ours there, that goes to the back or to the front
	for i := range sidecars {
		if s := &sidecars[i]; s.does != inserted && s.at >= 0 {
			if s.before {
				ours[s.at][1] = true
			} else {
				ours[s.at][0] = true
			}
		}
	}
	front := 0 // number of our sidecars at the front
	for front < len(containers) && ours[front][1] {
		front++
	}
	back := len(containers) // from here on all are ours
	for back > 0 && ours[back-1][0] {
		back--
	}
	next := 0
	for i := range sidecars {
		switch s := &sidecars[i]; {
		case !s.before:
		case s.does == inserted:
			s.at = next
		case s.at < front:
			next = max(next, s.at+1)
		}
	}
	next = len(containers)
	for i := range slices.Backward(sidecars) {
		switch s := &sidecars[i]; {
		case s.before:
		case s.does == inserted:
			s.at = next
		case s.at >= back:
			next = min(next, s.at)
		}
	}
}

// insertion is an element that is added to a list of the given length.
func insertion(t *target, list List, length, index int, p part) Edit {
	return Edit{SidecarSet: t.Name(), List: list, Index: index, Name: p.name, Body: p.body, whole: length == 0}
}

// placePullSecrets appends the Secrets that neither the Pod nor an earlier SidecarSet names.
func (s *selected) placePullSecrets() (added []Edit) {
	length, named := len(s.pod.ImagePullSecrets), keyed{}
	for _, name := range s.pod.ImagePullSecrets {
		named.add(element{key: name})
	}
	for t := range s.injecting() {
		for _, secret := range t.objectsOf(ImagePullSecrets) {
			if !named.has(secret.name) {
				added = append(added, insertion(t, ImagePullSecrets, length, length+len(added), secret))
				named.add(element{key: secret.name})
			}
		}
	}
	return added
}

// broughtVolumes are the volumes of SidecarSets that a Pod gets, and the SidecarSet of each.
type broughtVolumes struct {
	keyed
	by []*target
}

// placeVolumes plans the volumes of the SidecarSets. If the Pod or an earlier SidecarSet has a
// volume of that name, placeVolumes takes that for the same thing, unless an enforced SidecarSet
// brings one: the first of these counts. Volumes that differ are told.
func (s *selected) placeVolumes(p *placement, notes *notes) error {
	for t := range s.injecting() {
		if t.enforced {
			p.brought.bring(t, s)
		}
	}
	next := len(s.pod.Volumes)
	for t := range s.injecting() {
		p.brought.bring(t, s)
		for _, v := range t.objectsOf(Volumes) {
			brought, at := p.brought.find(v.name), s.volumeAt(v.name)
			switch {
			case brought < 0: // the Pod keeps its own, which may be something better than an emptyDir
				if kindOf(v.body) != "emptyDir" && kindOf(s.pod.Volumes[at].Body) != kindOf(v.body) {
					notes.tell(t, WarningVolume, "the Pod has another volume %s of its own", quoted(v.name))
				}
			case p.brought.by[brought] != t:
				if kindOf(p.brought.list[brought].body) != kindOf(v.body) {
					notes.tell(t, WarningVolume, "SidecarSet %q brings another volume %s", p.brought.by[brought].Name(), quoted(v.name))
				}
			case at >= 0:
				edit, err := s.replaceVolume(t, at, v, notes)
				if err != nil {
					return err
				}
				p.replaced = append(p.replaced, edit)
			default:
				p.volumes = append(p.volumes, insertion(t, Volumes, len(s.pod.Volumes), next, v))
				next++
			}
		}
	}
	return nil
}

// bring notes the volumes of a SidecarSet that the Pod gets.
func (b *broughtVolumes) bring(t *target, s *selected) {
	for _, v := range t.objectsOf(Volumes) {
		if (t.enforced || s.volumeAt(v.name) < 0) && !b.has(v.name) {
			b.add(element{v.name, v.body})
			b.by = append(b.by, t)
		}
	}
}

// replaceable are the kinds of volumes whose loss an app survives, or that its creator may
// have used to get around an enforced SidecarSet. All others hold data that comes from outside
// the Pod and its node.
var replaceable = []string{"emptyDir", "hostPath", "downwardAPI", "image", "gitRepo"}

// replaceVolume puts a volume of an enforced SidecarSet in the place of one of the Pod, but not
// in that of data that the app needs.
func (s *selected) replaceVolume(t *target, at int, v part, notes *notes) (Edit, error) {
	was := s.pod.Volumes[at].Body
	kind, becomes := kindOf(was), kindOf(v.body)
	if (kind != becomes || claimOf(was) != claimOf(v.body)) && !slices.Contains(replaceable, kind) {
		return Edit{}, &FitError{SidecarSet: t.Name(), Field: "spec.volumes",
			Problem: fmt.Sprintf("volume %q, of kind %s, would take the place of a volume of the Pod of kind %s, whose data the Pod's containers would lose, because annotation %s is set",
				v.name, becomes, quoted(kind), appsv1beta1.AnnotationEnforce),
			Remedy: "give the volume of the SidecarSet another name"}
	}
	if kind != becomes {
		notes.tell(t, WarningVolume, "volume %s takes the place of the Pod's own, which is of another kind", quoted(v.name))
	}
	return Edit{SidecarSet: t.Name(), List: Volumes, Index: at, Name: v.name, Body: v.body}, nil
}

// volumeAt is the place of the Pod's volume of that name; -1 if it has none.
func (s *selected) volumeAt(name string) int {
	return find(s.pod.Volumes, &s.tables.volumes, name, func(v *VolumeView) string { return v.Name })
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
