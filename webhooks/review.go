package webhooks

import (
	"errors"
	"fmt"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
)

const (
	reviewKind       = "AdmissionReview"
	reviewAPIVersion = "admission.k8s.io/v1"
)

// review is what one AdmissionReview says, as far as it had to be read. The status
// of a Pod being created is not read: it comes from the manifest, and the API
// server resets it after the webhooks. deletionTimestamp is not read: the API
// server removes it before the webhooks.
type review struct {
	kind, apiVersion string // of the envelope
	hasRequest       bool

	uid, operation, namespace    string
	group, resource, subResource string

	hasObject, hasMetadata, hasSpec bool
	// name is the Pod's name, or its generateName where it has none yet.
	name, generateName string
	pod                inject.PodView
}

// podName is how messages call the Pod.
func (r *review) podName() string {
	if r.name == "" {
		return r.namespace + "/" + r.generateName + "*"
	}
	return r.namespace + "/" + r.name
}

// identified reports whether what every request has to say has been read.
func (r *review) identified() bool {
	return r.kind != "" && r.apiVersion != "" && r.uid != "" && r.operation != "" && r.resource != ""
}

// podJudge decides while a review is being read.
type podJudge interface {
	// concerns reports whether the request is for us at all. It sees the members
	// of the request that have been read, those of identified at least, and is
	// asked again when all have been.
	concerns(*review) bool
	// selects reports whether the rest of the Pod has to be read. It sees
	// namespace and labels, and is asked at most once.
	selects(*review) bool
	// needs names the parts to keep of a selected Pod's containers; it is asked
	// after selects.
	needs() inject.Parts
}

// The members that are read of each object; all others are stepped over.
var (
	envelopeMembers  = []string{"kind", "apiVersion", "request"}
	requestMembers   = []string{"uid", "resource", "subResource", "namespace", "operation", "object"}
	resourceMembers  = []string{"group", "resource"}
	podMembers       = []string{"metadata", "spec"}
	metadataMembers  = []string{"name", "generateName", "labels", "annotations"}
	specMembers      = []string{"initContainers", "containers", "volumes", "imagePullSecrets"}
	containerMembers = []string{"name", "image", "env", "volumeMounts", "volumeDevices", "resources", "restartPolicy"}
	envMembers       = []string{"name", "value"}
	nameMember       = []string{"name"}
)

// errDecided ends a pass early: the answer is known.
var errDecided = errors.New("the answer is known")

// reviewReader reads AdmissionReviews of Pods in one pass. It asks the judge as
// soon as what the judge needs has been read, in whatever order the members
// stand. In the order in which the API server writes them that is right after
// the labels, before managed fields and spec; so a Pod that nothing selects
// costs the same whatever its size.
//
// A pass that ends early has not seen the rest of the document: neither its
// syntax nor a second member of the same name. That is harmless, since the API
// server writes valid JSON without duplicates and the answer changes nothing.
//
// Parts of containers that only some SidecarSets need are kept, as they stand in
// the document, if a selecting one asks for them. Where the spec stands before
// the labels that is known too late, and the document is read once more.
type reviewReader struct {
	reader
	rev   review
	judge podJudge

	hasLabels, judged, selected bool
	// parts are the ones to keep, as far as it is known.
	parts inject.Parts
}

// read parses document into rev and reports whether the judge selected the Pod;
// only then has all of it been read. An error says what is wrong with the
// document; rev then holds what had been read before.
func (r *reviewReader) read(document []byte, judge podJudge) (bool, error) {
	r.reset(document)
	defer r.release()
	r.rev = review{}
	r.judge = judge
	r.hasLabels, r.judged, r.selected, r.parts = false, false, false, 0

	r.readDocument()
	if r.err == nil && r.rev.pod.Parts != r.parts {
		r.reset(document)
		r.rev = review{}
		r.readDocument()
	}
	if errors.Is(r.err, errDecided) {
		return false, nil
	}
	return r.selected, r.err
}

func (r *reviewReader) readDocument() {
	r.readEnvelope()
	r.end()
	if r.err == nil {
		r.readComplete()
	}
}

func (r *reviewReader) readEnvelope() {
	if !r.object(envelopeMembers, func(name string) {
		switch name {
		case "kind":
			r.rev.kind = r.text()
			r.checkKind()
		case "apiVersion":
			r.rev.apiVersion = r.text()
			r.checkKind()
		case "request":
			r.rev.hasRequest = r.readRequest()
		}
	}) {
		r.fail(errors.New("the body must be a JSON object"))
	}
}

// checkKind refuses anything but a v1 AdmissionReview as soon as that is known.
func (r *reviewReader) checkKind() {
	kind, apiVersion := r.rev.kind, r.rev.apiVersion
	if kind != "" && kind != reviewKind || apiVersion != "" && apiVersion != reviewAPIVersion {
		r.fail(fmt.Errorf("expected kind %s of %s, not kind %q of %q", reviewKind, reviewAPIVersion, kind, apiVersion))
	}
}

func (r *reviewReader) readRequest() bool {
	return r.object(requestMembers, func(name string) {
		switch name {
		case "uid":
			r.rev.uid = r.text()
		case "resource":
			r.readResource()
		case "subResource":
			r.rev.subResource = r.text()
		case "namespace":
			r.rev.namespace = r.text()
		case "operation":
			r.rev.operation = r.text()
		case "object":
			r.considerRequest()
			r.rev.hasObject = r.readPod()
		}
	})
}

func (r *reviewReader) readResource() {
	r.object(resourceMembers, func(name string) {
		switch name {
		case "group":
			r.rev.group = r.text()
		case "resource":
			r.rev.resource = r.text()
		}
	})
}

func (r *reviewReader) readPod() bool {
	return r.object(podMembers, func(name string) {
		switch name {
		case "metadata":
			r.rev.hasMetadata = r.readMetadata()
		case "spec":
			r.rev.hasSpec = r.readSpec()
		}
	})
}

func (r *reviewReader) readMetadata() bool {
	present := r.object(metadataMembers, func(name string) {
		switch name {
		case "name":
			r.rev.name = r.text()
		case "generateName":
			r.rev.generateName = r.text()
		case "labels":
			r.rev.pod.Labels = r.textMap()
			r.hasLabels = true
			r.considerPod()
		case "annotations":
			r.rev.pod.Annotations = r.textMap()
		}
	})
	r.hasLabels = true // a Pod without the member has none
	r.considerPod()
	return present
}

func (r *reviewReader) readSpec() bool {
	pod := &r.rev.pod
	pod.Parts = r.parts
	return r.object(specMembers, func(name string) {
		switch name {
		case "initContainers":
			pod.InitContainers = r.readContainers()
		case "containers":
			pod.Containers = r.readContainers()
		case "volumes":
			pod.Volumes = r.readNames()
		case "imagePullSecrets":
			pod.ImagePullSecrets = r.readNames()
		}
	})
}

// readContainers returns nil where there is no list.
func (r *reviewReader) readContainers() []inject.ContainerView {
	views := make([]inject.ContainerView, 0, 4)
	if !r.array(func() { views = append(views, r.readContainer()) }) {
		return nil
	}
	return views
}

func (r *reviewReader) readContainer() (view inject.ContainerView) {
	var raw *inject.RawParts
	known := containerMembers[:3]
	if r.parts != 0 {
		raw, known = new(inject.RawParts), containerMembers
		view.Raw = raw
	}
	r.object(known, func(name string) {
		switch name {
		case "name":
			view.Name = r.text()
		case "image":
			view.Image = r.text()
		case "env":
			start := r.offset()
			view.Injected = r.readInjected()
			if r.parts&inject.PartEnv != 0 {
				raw.Env = r.since(start)
			}
		case "volumeMounts":
			raw.VolumeMounts = r.part(inject.PartVolumeMounts)
		case "volumeDevices":
			raw.VolumeDevices = r.part(inject.PartVolumeDevices)
		case "resources":
			raw.Resources = r.part(inject.PartResources)
		case "restartPolicy":
			raw.RestartPolicy = r.text()
		}
	})
	return view
}

// part steps over a value and keeps it, if that part is asked for.
func (r *reviewReader) part(part inject.Parts) []byte {
	start := r.offset()
	r.skip()
	if r.parts&part == 0 {
		return nil
	}
	return r.since(start)
}

// readInjected reads a container's env and reports whether its first IS_INJECTED
// has the literal value "true". Other values are stepped over.
func (r *reviewReader) readInjected() bool {
	found, injected := false, false
	r.array(func() {
		var mark, yes bool
		r.object(envMembers, func(name string) {
			switch name {
			case "name":
				mark = r.textIs(appsv1beta1.EnvInjected)
			case "value":
				yes = r.textIs("true")
			}
		})
		if mark && !found {
			found, injected = true, yes
		}
	})
	return injected
}

// readNames reads the names of a list's elements; nil where there is no list.
func (r *reviewReader) readNames() []string {
	names := make([]string, 0, 8)
	if !r.array(func() {
		element := ""
		r.object(nameMember, func(string) {
			element = r.text()
		})
		names = append(names, element)
	}) {
		return nil
	}
	return names
}

// considerRequest ends the pass if the request is known not to concern us.
func (r *reviewReader) considerRequest() {
	if r.err == nil && r.rev.identified() && !r.judge.concerns(&r.rev) {
		r.fail(errDecided)
	}
}

// considerPod asks the judge once namespace and labels are known, and ends the
// pass if the Pod is not selected.
func (r *reviewReader) considerPod() {
	if r.err != nil || r.judged || !r.hasLabels || !r.rev.identified() || r.rev.namespace == "" {
		return
	}
	r.judged = true
	if r.selected = r.judge.selects(&r.rev); !r.selected {
		r.fail(errDecided)
		return
	}
	r.parts = r.judge.needs()
}

// readComplete checks, after the whole document has been read, that nothing is
// missing, and asks the judge what could not be asked before.
func (r *reviewReader) readComplete() {
	switch {
	case r.rev.kind == "" || r.rev.apiVersion == "":
		r.fail(errors.New("kind and apiVersion are missing"))
	case !r.rev.hasRequest:
		r.fail(errors.New("request is missing"))
	case r.rev.uid == "":
		r.fail(errors.New("request.uid is missing"))
	case r.rev.operation == "":
		r.fail(errors.New("request.operation is missing"))
	case r.rev.resource == "":
		r.fail(errors.New("request.resource is missing"))
	}
	r.considerRequest()
	switch {
	case r.err != nil:
	case r.rev.namespace == "":
		r.fail(errors.New("request.namespace is missing; every Pod is in a namespace"))
	case !r.rev.hasObject:
		r.fail(errors.New("request.object is missing"))
	case !r.rev.hasMetadata:
		r.fail(errors.New("request.object.metadata is missing"))
	}
	r.considerPod()
	if r.err == nil && !r.rev.hasSpec {
		r.fail(errors.New("request.object.spec is missing"))
	}
}
