package inject

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/expr"
)

// sidecarOnly are the members that no container of a Pod has.
var sidecarOnly = appsv1beta1.SidecarMembers()

// sidecar is one container as it goes into Pods.
type sidecar struct {
	part            // body is nil where it depends on the Pod
	image    string // expected in a Pod that has it
	before   bool   // in front of the Pod's own containers of the list
	template *template
	// sibling is the other container of a hot-upgrade pair, "" for all others.
	// After a hot upgrade the two have swapped their images.
	sibling, siblingImage string
	idle                  bool // the second one of such a pair
	ports                 []corev1.ContainerPort
	field                 string // where it is in the SidecarSet
	list                  List
	native                bool
	refusedBy             map[corev1.OSName][]string // members of securityContext, by the operating system of Pods
}

// template makes the body of a sidecar that depends on the Pod.
type template struct {
	rest                 []byte // the members that do not depend on the Pod, without braces
	env, mounts, devices []element
	deviceVolumes        []element // the volumes of the devices, by name only
	hotEnv               []element // behind all other variables
	transfers            []transfer
	shareMounts          bool
	shareDevices         bool
	resources            *resourcesPolicy // nil: resources are among the rest
}

// element is one of a container's env, volumeMounts or volumeDevices.
type element struct {
	key  string // identifies it in its list: name, mountPath or devicePath
	body json.RawMessage
}

// transfer is one entry of transferEnv.
type transfer struct {
	container         string // the source container; "" where label or annotation names it
	label, annotation string
	names             []string // sorted, without duplicates
}

func (p *Compiled) sidecars(spec map[string]any, list List, typed []appsv1beta1.SidecarContainer, targets *expr.Targets) ([]sidecar, error) {
	raw, _ := spec[string(list)].([]any)
	out := make([]sidecar, 0, len(typed))
	for i := range typed {
		field := index("spec."+string(list), i)
		c, ok := raw[i].(map[string]any)
		if !ok {
			return nil, p.fieldError(field, errors.New("must be a container, not null"))
		}
		names, isNative := typed[i].PodContainerNames(), false
		if list == InitContainers {
			names, isNative = typed[i].PodInitContainerNames(), typed[i].IsNative()
		}
		if len(names) > 1 {
			p.hotUpgrade = append(p.hotUpgrade, typed[i].Name)
			p.checkHotUpgrade(&typed[i], field)
		}
		p.copies = p.copies || copies(&typed[i])
		p.notePorts(typed[i].Ports, list == Containers || isNative)
		policy := p.resourcesPolicy(c, &typed[i], targets, field)
		for _, s := range variants(&typed[i], names) {
			if err := s.compile(c, &typed[i], policy); err != nil {
				return nil, p.fieldError(field, err)
			}
			s.list, s.native, s.field, s.ports = list, isNative, field, typed[i].Ports
			s.refusedBy = refusedBy(c)
			out = append(out, s)
		}
	}
	return out, nil
}

// notePorts notes which ports a sidecar has. Services find those of containers that run with the
// app.
func (p *Compiled) notePorts(ports []corev1.ContainerPort, runsWithApp bool) {
	for _, port := range ports {
		p.hasPorts = true
		p.hasNodePorts = p.hasNodePorts || port.HostPort != 0
		p.hasNamedPorts = p.hasNamedPorts || port.Name != "" && runsWithApp
	}
}

// maxContainerName is the longest name that a container can have: a DNS label.
const maxContainerName = 63

// checkHotUpgrade notes why no Pod can have the hot-upgrade pair of a sidecar.
func (p *Compiled) checkHotUpgrade(c *appsv1beta1.SidecarContainer, field string) {
	if member, problem := c.HotUpgradeProblem(); problem != "" && p.invalid == nil {
		p.invalid = &InvalidError{p.Name(), field + "." + member, problem}
	}
}

// variants are the sidecar itself or, for a hot upgrade, the container that
// works first and the idle one. They have no bodies yet.
func variants(c *appsv1beta1.SidecarContainer, names []string) []sidecar {
	working := sidecar{part: part{name: names[0]}, image: c.Image, before: c.PodInjectPolicy == appsv1beta1.BeforeAppContainer}
	if len(names) == 1 {
		return []sidecar{working}
	}
	idle := working
	idle.name, idle.image, idle.idle = names[1], c.UpgradeStrategy.HotUpgradeEmptyImage, true
	working.sibling, working.siblingImage = idle.name, idle.image
	idle.sibling, idle.siblingImage = working.name, working.image
	return []sidecar{working, idle}
}

// resourcesPolicy compiles the policy of a sidecar; nil if the sidecar has none. It notes a
// policy that cannot be used in any Pod.
func (p *Compiled) resourcesPolicy(c map[string]any, typed *appsv1beta1.SidecarContainer, targets *expr.Targets, field string) *resourcesPolicy {
	if typed.ResourcesPolicy == nil {
		return nil
	}
	resources, _ := c["resources"].(map[string]any)
	policy := compileResourcesPolicy(ResourcesError{SidecarSet: p.Name(), Container: typed.Name, Field: field + ".resourcesPolicy"}, typed.ResourcesPolicy, targets, resources)
	if unusable := new(ResourcesError); p.invalid == nil && errors.As(policy.err, &unusable) {
		p.invalid = &InvalidError{p.Name(), unusable.Field, "cannot be used: " + unusable.Err.Error()}
	}
	return policy
}

// compile makes the body, or the template of it.
func (s *sidecar) compile(c map[string]any, typed *appsv1beta1.SidecarContainer, policy *resourcesPolicy) (err error) {
	body := containerBody(c)
	var hotEnv []any
	if s.sibling != "" {
		body["name"], body["image"] = s.name, s.image
		hotEnv = versionEnv(s.name)
	}
	if copies(typed) {
		s.template, err = newTemplate(body, hotEnv, typed, policy)
		return err
	}
	env, _ := body["env"].([]any)
	body["env"] = append(env, hotEnv...)
	s.body, err = json.Marshal(body)
	return err
}

// containerBody is the container as it is in a Pod: without the members that only a
// SidecarSet has, and with IS_INJECTED=true as the last env. An IS_INJECTED that the user
// wrote is left out, because the first one decides.
func containerBody(c map[string]any) map[string]any {
	body := maps.Clone(c)
	for _, member := range sidecarOnly {
		delete(body, member)
	}
	own, _ := c["env"].([]any)
	env := make([]any, 0, len(own)+1)
	for _, e := range own {
		if v, _ := e.(map[string]any); v["name"] != appsv1beta1.EnvInjected {
			env = append(env, e)
		}
	}
	body["env"] = append(env, map[string]any{"name": appsv1beta1.EnvInjected, "value": "true"})
	return body
}

// versionEnv are the variables by which the two containers of a pair learn which
// of them is newer.
func versionEnv(container string) []any {
	from := func(name, prefix string) any {
		path := "metadata.annotations['" + prefix + container + "']"
		return map[string]any{"name": name, "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": path}}}
	}
	return []any{
		from(appsv1beta1.EnvVersion, appsv1beta1.AnnotationVersionPrefix),
		from(appsv1beta1.EnvVersionAlt, appsv1beta1.AnnotationVersionAltPrefix),
	}
}

// copies reports whether policies of a sidecar take something from the Pod's containers.
func copies(c *appsv1beta1.SidecarContainer) bool {
	return len(c.TransferEnv) > 0 || shares(&c.ShareVolumePolicy) || shares(c.ShareVolumeDevicePolicy) || c.ResourcesPolicy != nil
}

func shares(p *appsv1beta1.ShareVolumePolicy) bool {
	return p != nil && p.Type == appsv1beta1.ShareVolumePolicyEnabled
}

// newTemplate takes body apart.
func newTemplate(body map[string]any, hotEnv []any, typed *appsv1beta1.SidecarContainer, policy *resourcesPolicy) (*template, error) {
	t := &template{
		transfers:    transfers(typed.TransferEnv),
		shareMounts:  shares(&typed.ShareVolumePolicy),
		shareDevices: shares(typed.ShareVolumeDevicePolicy),
		resources:    policy,
	}
	for _, device := range typed.VolumeDevices {
		t.deviceVolumes = append(t.deviceVolumes, element{key: device.Name})
	}
	var err error
	take := func(into *[]element, list any, key string) {
		if err == nil {
			*into, err = elements(list, key)
		}
	}
	take(&t.env, body["env"], "name")
	take(&t.mounts, body["volumeMounts"], "mountPath")
	take(&t.devices, body["volumeDevices"], "devicePath")
	take(&t.hotEnv, hotEnv, "name")
	if err != nil {
		return nil, err
	}
	for _, member := range []string{"env", "volumeMounts", "volumeDevices"} {
		delete(body, member)
	}
	if policy != nil {
		delete(body, "resources")
	}
	rest, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	t.rest = rest[1 : len(rest)-1]
	return t, nil
}

// elements serialises a list. The bodies share their memory, since a SidecarSet
// may have thousands of variables.
func elements(list any, key string) ([]element, error) {
	items, _ := list.([]any)
	bodies := make([]json.RawMessage, len(items))
	size := 0
	for i, item := range items {
		body, err := json.Marshal(item)
		if err != nil {
			return nil, err
		}
		bodies[i] = body
		size += len(body)
	}
	out, shared := make([]element, len(items)), make([]byte, 0, size)
	for i, item := range items {
		start := len(shared)
		shared = append(shared, bodies[i]...)
		members, _ := item.(map[string]any)
		out[i] = element{text(members, key), shared[start:len(shared):len(shared)]}
	}
	return out, nil
}

func transfers(list []appsv1beta1.TransferEnvVar) []transfer {
	var out []transfer
	for _, v := range list {
		names := slices.Clone(v.EnvNames)
		if v.EnvName != "" {
			names = append(names, v.EnvName)
		}
		slices.Sort(names)
		t := transfer{container: v.SourceContainerName, names: slices.Compact(names)}
		if from := v.SourceContainerNameFrom; from != nil && from.FieldRef != nil {
			t.container = ""
			t.label, t.annotation = subscript(from.FieldRef.FieldPath)
		}
		out = append(out, t)
	}
	return out
}

// subscript returns the key of metadata.labels['key'] or
// metadata.annotations['key']; both are "" for any other path, which names no
// container.
func subscript(path string) (label, annotation string) {
	path, ok := strings.CutSuffix(path, "']")
	field, key, found := strings.Cut(path, "['")
	switch {
	case !ok || !found:
	case field == "metadata.labels":
		return key, ""
	case field == "metadata.annotations":
		return "", key
	}
	return "", ""
}
