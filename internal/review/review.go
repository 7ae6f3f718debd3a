// Package review reads AdmissionReviews of Pods that are being created, as far as
// they have to be read: ReadHead reads what decides whether a SidecarSet selects
// the Pod, and ReadPod reads the rest of a Pod that one selects. It makes no
// decision and knows no SidecarSet.
//
// In the order in which the API server writes a review, ReadHead ends right after
// the labels, before managed fields and spec. So a Pod that nothing selects costs
// the same, whatever its size. Neither the syntax of the rest nor a second member
// of the same name is noticed then. That is harmless: the API server writes valid
// JSON without duplicates, and the answer changes nothing.
//
// The status of the Pod is not read: it comes from the manifest, and the API
// server resets it after the webhooks. deletionTimestamp is not read: the API
// server removes it before the webhooks.
package review

import (
	"errors"
	"fmt"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/jsonread"
	"github.com/sidecarset/operator/internal/members"
)

const (
	reviewKind       = "AdmissionReview"
	reviewAPIVersion = "admission.k8s.io/v1"
)

// Head has what a review says about the request, and the part of the Pod that decides whether
// a SidecarSet selects it.
type Head struct {
	UID, Operation, Namespace    string
	Group, Resource, SubResource string
	// Name is the Pod's name. A Pod that has none yet has a GenerateName.
	Name, GenerateName string
	Labels             map[string]string
}

// CreatesPod reports whether the request is the creation of a Pod.
func (h *Head) CreatesPod() bool {
	return h.Operation == "CREATE" && h.Group == "" && h.Resource == "pods" && h.SubResource == ""
}

// PodName is how messages call the Pod.
func (h *Head) PodName() string {
	if h.Name == "" {
		return h.Namespace + "/" + h.GenerateName + "*"
	}
	return h.Namespace + "/" + h.Name
}

// The members that are read of each object. All others are stepped over.
var (
	envelopeMembers  = []string{"kind", "apiVersion", "request"}
	requestMembers   = []string{"uid", "resource", "subResource", "namespace", "operation", "object"}
	resourceMembers  = []string{"group", "resource"}
	podMembers       = []string{"metadata", "spec"}
	metadataMembers  = []string{"name", "generateName", "labels", "annotations"}
	specMembers      = append(members.OfPods(), "hostNetwork", "os", "resources")
	containerMembers = []string{"name", "image", "env", "envFrom", "ports", "volumeMounts", "volumeDevices", "resources", "restartPolicy"}
	envMembers       = []string{"name", "value"}
	nameMember       = []string{"name"}
)

// Reader reads reviews, one after the other. The zero Reader is ready to use. It uses its
// memory again for the next review: otherwise this memory would be most of the garbage of a
// request. It is not safe for concurrent use.
type Reader struct {
	json jsonread.Reader
	head headReader
	pod  podReader
}

// Release drops the references to the review that was read last.
func (r *Reader) Release() {
	r.json.Reset(nil)
	r.head, r.pod = headReader{}, podReader{}
}

// ReadHead reads a review until its Head is known, and fails if it cannot become
// known. The Head of a request that does not create a Pod has no name and no
// labels. With an error, Head has what was read before.
func (r *Reader) ReadHead(document []byte) (Head, error) {
	r.json.Reset(document)
	r.head = headReader{Reader: &r.json}
	h := &r.head
	h.readEnvelope()
	h.End()
	if h.Going() {
		h.Fail(h.missing())
	}
	return h.head, h.Err()
}

// headReader reads the Head of one review.
type headReader struct {
	*jsonread.Reader
	kind, apiVersion                              string // of the envelope
	hasRequest, hasObject, hasMetadata, hasLabels bool
	head                                          Head
}

func (h *headReader) readEnvelope() {
	if !h.Object(envelopeMembers, func(name string) {
		switch name {
		case "kind":
			h.kind = h.Text()
			h.checkKind()
		case "apiVersion":
			h.apiVersion = h.Text()
			h.checkKind()
		case "request":
			h.hasRequest = h.readRequest()
		}
	}) {
		h.Fail(errors.New("the body must be a JSON object"))
	}
}

// checkKind refuses anything but a v1 AdmissionReview as soon as that is known.
func (h *headReader) checkKind() {
	if h.kind != "" && h.kind != reviewKind || h.apiVersion != "" && h.apiVersion != reviewAPIVersion {
		h.Fail(fmt.Errorf("expected kind %s of %s, not kind %q of %q", reviewKind, reviewAPIVersion, h.kind, h.apiVersion))
	}
}

func (h *headReader) readRequest() bool {
	return h.Object(requestMembers, func(name string) {
		switch name {
		case "uid":
			h.head.UID = h.Text()
		case "resource":
			h.readResource()
		case "subResource":
			h.head.SubResource = h.Text()
		case "namespace":
			h.head.Namespace = h.Text()
		case "operation":
			h.head.Operation = h.Text()
		case "object":
			if h.identified() && !h.head.CreatesPod() {
				h.Stop()
				return
			}
			h.hasObject = h.readObject()
		}
	})
}

func (h *headReader) readResource() {
	h.Object(resourceMembers, func(name string) {
		switch name {
		case "group":
			h.head.Group = h.Text()
		case "resource":
			h.head.Resource = h.Text()
		}
	})
}

func (h *headReader) readObject() bool {
	return h.Object(podMembers, func(name string) {
		if name == "metadata" {
			h.hasMetadata = h.readMetadata()
			h.hasLabels = true // a Pod without the member has none
			h.stopIfKnown()
			return
		}
		h.Skip()
	})
}

func (h *headReader) readMetadata() bool {
	return h.Object(metadataMembers, func(name string) {
		switch name {
		case "name":
			h.head.Name = h.Text()
		case "generateName":
			h.head.GenerateName = h.Text()
		case "labels":
			h.head.Labels = h.TextMap()
			h.hasLabels = true
			h.stopIfKnown()
		default:
			h.Skip()
		}
	})
}

// identified reports whether every member that all requests need has been read.
func (h *headReader) identified() bool {
	return h.kind != "" && h.apiVersion != "" && h.head.UID != "" && h.head.Operation != "" && h.head.Resource != ""
}

// stopIfKnown ends the reading once the Head is known. The name of the Pod is
// before its labels, or it has a GenerateName there.
func (h *headReader) stopIfKnown() {
	if h.hasLabels && h.identified() && h.head.Namespace != "" {
		h.Stop()
	}
}

// missing returns an error if a whole document lacks part of the Head.
func (h *headReader) missing() error {
	switch {
	case h.kind == "" || h.apiVersion == "":
		return errors.New("kind and apiVersion are missing")
	case !h.hasRequest:
		return errors.New("request is missing")
	case h.head.UID == "":
		return errors.New("request.uid is missing")
	case h.head.Operation == "":
		return errors.New("request.operation is missing")
	case h.head.Resource == "":
		return errors.New("request.resource is missing")
	case !h.head.CreatesPod():
		return nil
	case h.head.Namespace == "":
		return errors.New("request.namespace is missing; every Pod is in a namespace")
	case !h.hasObject:
		return errors.New("request.object is missing")
	case !h.hasMetadata:
		return errors.New("request.object.metadata is missing")
	}
	return nil
}

// ReadPod reads the Pod of a review, to the end of the document. labels are those
// of its Head. What is raw in the Pod is part of document. The error is a
// *LongListError if a list is too long.
func (r *Reader) ReadPod(document []byte, labels map[string]string) (inject.PodView, error) {
	r.json.Reset(document)
	r.pod = podReader{Reader: &r.json, pod: inject.PodView{Labels: labels}}
	p := &r.pod
	p.readEnvelope()
	p.End()
	if p.Going() && !p.hasSpec {
		p.Fail(errors.New("request.object.spec is missing"))
	}
	return p.pod, p.Err()
}

// podReader reads the Pod of one review. It steps over the members of the Head,
// but each may still be present once only.
type podReader struct {
	*jsonread.Reader
	hasSpec bool
	pod     inject.PodView
}

func (p *podReader) readEnvelope() {
	p.only(envelopeMembers, "request", func() {
		p.only(requestMembers, "object", p.readObject)
	})
}

// only reads one member of an object, and steps over the others.
func (p *podReader) only(known []string, wanted string, read func()) {
	p.Object(known, func(name string) {
		if name == wanted {
			read()
			return
		}
		p.Skip()
	})
}

func (p *podReader) readObject() {
	p.Object(podMembers, func(name string) {
		switch name {
		case "metadata":
			p.only(metadataMembers, "annotations", func() { p.pod.Annotations = p.TextMap() })
		case "spec":
			p.hasSpec = p.readSpec()
		}
	})
}

func (p *podReader) readSpec() bool {
	return p.Object(specMembers, func(name string) {
		switch name {
		case "initContainers":
			p.pod.InitContainers = readList(p, name, p.readContainer)
		case "containers":
			p.pod.Containers = readList(p, name, p.readContainer)
		case "volumes":
			p.pod.Volumes = readList(p, name, p.readVolume)
		case "imagePullSecrets":
			p.pod.ImagePullSecrets = readList(p, name, p.readName)
		case "hostNetwork":
			p.pod.Spec.HostNetwork = string(p.readRaw()) == "true"
		case "os":
			p.pod.Spec.OS = p.readName()
		case "resources":
			p.pod.Spec.Resources = p.readRaw()
		}
	})
}

// MaxElements is how many elements each list of a Pod may have that is read. No Pod can
// run as many.
const MaxElements = 1000

// LongListError says which list of a Pod has more than MaxElements elements.
type LongListError struct{ Field string }

func (e *LongListError) Error() string {
	return fmt.Sprintf("%s: the list has more than %d elements, which no Pod can use; shorten it", e.Field, MaxElements)
}

// readList reads the elements of a list of the Pod's spec; nil if there is no list. It
// fails before the element that is one too many.
func readList[T any](p *podReader, list string, read func() T) []T {
	all := make([]T, 0, 4)
	if !p.Array(func() {
		if len(all) >= MaxElements {
			p.Fail(&LongListError{"spec." + list})
		}
		all = append(all, read())
	}) {
		return nil
	}
	return all
}

func (p *podReader) readContainer() (view inject.ContainerView) {
	p.Object(containerMembers, func(name string) {
		switch name {
		case "name":
			view.Name = p.Text()
		case "image":
			view.Image = p.Text()
		case "env":
			start := p.Offset()
			view.Injected = p.readInjected()
			view.Env = p.Since(start)
		case "envFrom":
			p.Array(func() { view.EnvFrom = true; p.Skip() })
		case "ports":
			view.Ports = p.readRaw()
		case "volumeMounts":
			view.VolumeMounts = p.readRaw()
		case "volumeDevices":
			view.VolumeDevices = p.readRaw()
		case "resources":
			view.Resources = p.readRaw()
		case "restartPolicy":
			view.RestartPolicy = p.Text()
		}
	})
	return view
}

// readRaw steps over a value and returns it, as bytes of the document; nil for null.
func (p *podReader) readRaw() []byte {
	start := p.Offset()
	p.Skip()
	return p.Since(start)
}

func (p *podReader) readVolume() inject.VolumeView {
	start := p.Offset()
	return inject.VolumeView{Name: p.readName(), Body: p.Since(start)}
}

// readInjected reads a container's env and reports whether its first IS_INJECTED
// has the literal value "true". Other values are stepped over.
func (p *podReader) readInjected() bool {
	found, injected := false, false
	p.Array(func() {
		var mark, yes bool
		p.Object(envMembers, func(name string) {
			switch name {
			case "name":
				mark = p.TextIs(appsv1beta1.EnvInjected)
			case "value":
				yes = p.TextIs("true")
			}
		})
		if mark && !found {
			found, injected = true, yes
		}
	})
	return injected
}

func (p *podReader) readName() (name string) {
	p.Object(nameMember, func(string) { name = p.Text() })
	return name
}
