package inject

import (
	"bytes"
	"iter"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// reference is a part of a SidecarSet that refers to something by its name.
type reference struct {
	of   string // the part, as facts name it
	name string
}

// earlyReferences finds the variables that the kubelet does not find before they are referred
// to, in the env of a container as its author wrote it.
func earlyReferences(c *appsv1beta1.SidecarContainer) (early []reference) {
	if len(c.EnvFrom) > 0 {
		return nil
	}
	for i := range c.Env {
		for name := range expansionsIn(c.Env[i].Value) {
			if !slices.ContainsFunc(c.Env[:i], func(e corev1.EnvVar) bool { return e.Name == name }) {
				early = append(early, reference{c.Env[i].Name, name})
			}
		}
	}
	return early
}

// resourceReferences finds the containers whose resources the SidecarSet's containers and
// volumes show.
func (p *Program) resourceReferences() (refs []reference) {
	add := func(what, name string, from *corev1.ResourceFieldSelector) {
		if from != nil && from.ContainerName != "" {
			refs = append(refs, reference{what + quoted(name).String(), from.ContainerName})
		}
	}
	addItems := func(volume string, items []corev1.DownwardAPIVolumeFile) {
		for _, item := range items {
			add("volume ", volume, item.ResourceFieldRef)
		}
	}
	spec := &p.Set.Spec
	for _, list := range [][]appsv1beta1.SidecarContainer{spec.InitContainers, spec.Containers} {
		for i := range list {
			for _, e := range list[i].Env {
				if e.ValueFrom != nil {
					add("variable "+quoted(e.Name).String()+" of container ", list[i].Name, e.ValueFrom.ResourceFieldRef)
				}
			}
		}
	}
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		if !slices.ContainsFunc(p.volumes, func(brought part) bool { return brought.name == v.Name }) {
			continue
		}
		if v.DownwardAPI != nil {
			addItems(v.Name, v.DownwardAPI.Items)
		}
		if v.Projected != nil {
			for _, source := range v.Projected.Sources {
				if source.DownwardAPI != nil {
					addItems(v.Name, source.DownwardAPI.Items)
				}
			}
		}
	}
	return refs
}

// noticeResourcesOf finds references to the resources of containers that the Pod lacks.
func (c *computation) noticeResourcesOf() {
	for t := range c.injecting() {
		for _, r := range t.resourcesOf {
			if !c.hasContainer(r.name) {
				c.tellOf(t, NoticeReference, "%s has a resourceFieldRef to container %s, which the Pod does not have: a container that needs it does not start", r.of, quoted(r.name))
			}
		}
	}
}

// noticeEnv finds what transferEnv does not copy, and what it copies too late. env is complete.
func (c *computation) noticeEnv(s placed, env *keyed) {
	t := s.template
	for _, r := range t.early {
		if env.find(r.name) >= len(t.env) {
			c.tell(s, NoticeReference, "variable %s of container %s refers to $(%s), which is copied behind it", quoted(r.of), quoted(s.name), r.name)
		}
	}
	for _, transfer := range t.transfers {
		c.noticeTransfer(s, transfer, env)
	}
}

// noticeTransfer finds what the sidecar does not have, although an entry of transferEnv names it.
func (c *computation) noticeTransfer(s placed, t transfer, env *keyed) {
	container := c.sourceName(t)
	from := c.source(container)
	for _, name := range t.names {
		if env.has(name) {
			continue
		}
		if from == nil {
			c.tell(s, NoticeTransferEnv, "container %s does not get variable %s of %s", quoted(s.name), quoted(name), c.whyNoSource(t, container))
			continue
		}
		why := ""
		if from.EnvFrom {
			why = ", and what it has from envFrom is not copied"
		}
		c.tell(s, NoticeTransferEnv, "container %s does not get variable %s: container %s does not have it in env%s", quoted(s.name), quoted(name), quoted(container), why)
	}
}

// whyNoSource names the container that an entry of transferEnv copies from, and says why that
// is not one of the app's.
func (c *computation) whyNoSource(t transfer, container string) string {
	named := "container " + quoted(container).String()
	switch {
	case container == "" && t.label != "":
		return "the container that label " + quoted(t.label).String() + " names, because the Pod does not have that label"
	case container == "" && t.annotation != "":
		return "the container that annotation " + quoted(t.annotation).String() + " names, because the Pod does not have that annotation"
	case c.belongsToSidecars(container):
		return named + ", because a SidecarSet brings it"
	case indexOf(c.pod.InitContainers, container) >= 0:
		return named + ", because it is among the Pod's initContainers"
	default:
		return named + ", which the Pod does not have"
	}
}

// noticeCopied finds what the variable that was copied last refers to.
func (c *computation) noticeCopied(s placed, from *source, env *keyed) {
	last := len(env.list) - 1
	copied := &env.list[last]
	if !bytes.Contains(copied.body, []byte("$(")) && !bytes.Contains(copied.body, []byte("resourceFieldRef")) {
		return
	}
	var v corev1.EnvVar
	if utiljson.Unmarshal(copied.body, &v) != nil {
		return
	}
	if v.ValueFrom != nil && v.ValueFrom.ResourceFieldRef != nil && v.ValueFrom.ResourceFieldRef.ContainerName == "" {
		c.tell(s, NoticeReference, "variable %s is copied from container %s, and its resourceFieldRef, which does not name a container, now shows the resources of container %s",
			quoted(copied.key), quoted(from.Name), quoted(s.name))
	}
	if s.template.envFrom {
		return // it may have the others from there
	}
	place := from.env.find(copied.key)
	for name := range expansionsIn(v.Value) {
		has, at := env.find(name), from.env.find(name)
		isThere := has >= 0 && has < last
		var problem string
		switch {
		case isThere && (at < 0 || sameJSON(env.list[has].body, from.env.list[at].body)):
			continue
		case isThere:
			problem = "which has another value in container %[4]s"
		case at >= 0 && at < place:
			problem = "which container %[4]s does not have before it"
		case at < 0 && from.EnvFrom:
			problem = "which that container may have from envFrom, and container %[4]s does not have"
		default:
			continue // it is the same text in the app, or the kubelet's own variable
		}
		c.tell(s, NoticeReference, "variable %[1]s is copied from container %[2]s and refers to %[3]s, "+problem,
			quoted(copied.key), quoted(from.Name), quoted(name), quoted(s.name))
		return
	}
}

// noticeSubPath compares the variables that a shared mount's path is made of with those of the
// container that it comes from. It returns the variables that have been compared.
func (c *computation) noticeSubPath(s placed, from *source, m *podElement, env *keyed, compared map[string]bool) map[string]bool {
	for name := range expansionsIn(m.subPathExpr) {
		if compared[name] {
			continue
		}
		if compared == nil {
			compared = map[string]bool{}
		}
		compared[name] = true
		has, want := env.find(name), from.env.find(name)
		switch {
		case has >= 0 && want >= 0 && !sameJSON(env.list[has].body, from.env.list[want].body):
			c.tell(s, NoticeReference, "container %s shares %s of container %s but shows another subPath, because its variable %s is another one",
				quoted(s.name), quoted(m.key), quoted(from.Name), quoted(name))
		case has < 0 && want < 0 && from.EnvFrom && !s.template.envFrom:
			c.tell(s, NoticeReference, "container %s shares %s of container %s, whose subPathExpr has variable %s, which may be from envFrom and is not copied: without it, kubelets do not start the sidecar",
				quoted(s.name), quoted(m.key), quoted(from.Name), quoted(name))
		}
	}
	return compared
}

// expansionsIn yields the variables $(NAME) that a kubelet replaces in a value. $$ is an escape.
func expansionsIn(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for {
			_, rest, found := strings.Cut(text, "$")
			switch {
			case !found || rest == "":
				return
			case rest[0] == '$':
				rest = rest[1:]
			case rest[0] == '(':
				if name, behind, closed := strings.Cut(rest[1:], ")"); closed {
					if !yield(name) {
						return
					}
					rest = behind
				}
			}
			text = rest
		}
	}
}

// mayEqual reports whether two texts may have the same meaning by their lengths: JSON writes
// one byte with at most six. So the author of a Pod cannot make a comparison expensive.
func mayEqual(a, b []byte) bool {
	const defaults = 1024 // what API servers may have filled in
	return len(a) <= 6*len(b)+defaults && len(b) <= 6*len(a)+defaults
}

func sameJSON(a, b []byte) bool { return matches(a, b, reflect.DeepEqual) }

// matches compares the values of two texts.
func matches(a, b []byte, equal func(a, b any) bool) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y any
	return mayEqual(a, b) && utiljson.Unmarshal(a, &x) == nil && utiljson.Unmarshal(b, &y) == nil && equal(x, y)
}
