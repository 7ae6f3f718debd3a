package certs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
)

// Mode is the origin of certificates.
type Mode string

// The modes.
const (
	ModeSelf        Mode = "self"         // the operator's own CA, kept in a Secret; replicas issue leaves
	ModeCertManager Mode = "cert-manager" // the leader declares issuers and certificates to cert-manager, which fills Secrets
	ModeFiles       Mode = "files"        // a key pair and the CA are mounted as files
)

// Options configure a Source. Subject is always required, Namespace in all modes but files, SecretName in mode self, and Directory
// in mode files.
type Options struct {
	// Mode is self if empty.
	Mode Mode
	// Namespace is the namespace of Secrets and of objects that are declared to cert-manager.
	Namespace string
	// SecretName is the Secret that holds the CA in mode self.
	SecretName string
	// Directory holds tls.crt, tls.key and ca.crt in mode files.
	Directory string
	// Subject has the names for which leaves are valid: the ServiceName at least, and IP addresses if API servers call webhooks by
	// URL. In mode files the mounted leaf must be valid for them.
	Subject Subject
	// PublishedElsewhere says that another program, such as cert-manager's cainjector, writes the bundle into the objects of the
	// manifests. Then the leader writes only the shards. Mode files only.
	PublishedElsewhere bool
	// Events receives what administrators need to know. If it is nil, no events are emitted.
	Events events.EventRecorder
	// Times are DefaultTimes if zero.
	Times Times
}

// Times are the durations of the rules. They depend on one another, and on the times of the operator's other versions: replicas hold a
// leaf back for a shorter time than the leader waits before it removes trust.
type Times struct {
	Poll       time.Duration // between two reads of the Secret or the files; until there is a Secret, each PollClock
	PollClock  time.Duration // between two looks at the clock
	Hold       time.Duration // for how long every bundle must have accepted a leaf of another CA before it is served
	Remove     time.Duration // for how long every bundle must have held the CAs of the Secret before others are removed
	RemoveFile time.Duration // Remove where a kubelet delivers certificates, which takes minutes
	WriteAgain time.Duration // after a bundle was changed, its object is written once more
	Settled    time.Duration // after which API servers follow what was written
	MinLeafAge time.Duration // the age at which a renewed leaf of another issuer is served: API servers' clocks may be behind
}

// DefaultTimes are for production. Hold and Remove must not change between neighbouring versions.
var DefaultTimes = Times{
	Poll: 10 * time.Second, PollClock: time.Second, Hold: 2 * time.Minute, Remove: 5 * time.Minute, RemoveFile: time.Hour, WriteAgain: 30 * time.Second,
	Settled: 10 * time.Minute, MinLeafAge: 5 * time.Minute,
}

// Faster returns the times divided by a factor, for tests.
func (t Times) Faster(factor int) Times {
	f := time.Duration(factor)
	return Times{
		Poll: t.Poll / f, PollClock: t.PollClock / f, Hold: t.Hold / f, Remove: t.Remove / f, RemoveFile: t.RemoveFile / f, WriteAgain: t.WriteAgain / f,
		Settled: t.Settled / f, MinLeafAge: t.MinLeafAge / f,
	}
}

const day = 24 * time.Hour

// The life of certificates in mode self and cert-manager.
const (
	// caLife is how long a CA is valid. It signs from a third of that on, and two thirds after that nothing is signed by it.
	caLife = 365 * day
	// early is how long before it is made a CA begins to be valid, and how long before its end a leaf is replaced in any case.
	early = day
	// unusableBefore is how long before its end a CA is replaced.
	unusableBefore = 30 * day
	// suppliedLife is how long a leaf of cert-manager is valid.
	suppliedLife = 30 * day
)

// Validate returns what is wrong with the options.
func (o Options) Validate() error {
	o.Mode = cmp.Or(o.Mode, ModeSelf)
	switch {
	case !slices.Contains([]Mode{ModeSelf, ModeCertManager, ModeFiles}, o.Mode):
		return fmt.Errorf("certificates cannot come from %q: use %s, %s or %s", o.Mode, ModeSelf, ModeCertManager, ModeFiles)
	case o.Mode == ModeSelf && o.SecretName == "":
		return errors.New("the Secret of the CA has no name")
	case o.Mode == ModeFiles && o.Directory == "":
		return errors.New("there is no directory to read certificates from")
	case o.PublishedElsewhere && o.Mode != ModeFiles:
		return fmt.Errorf("in mode %s the operator itself publishes the CA bundle", o.Mode)
	}
	return nil
}

// ReasonCAReplaced is the reason of the event that says which pair of the CA Secret could not be used, and was replaced.
const ReasonCAReplaced = "CAReplaced"

// warn emits a Warning event about an object. The note must contain nothing secret.
func (o Options) warn(about *corev1.ObjectReference, reason, action, note string) {
	if o.Events != nil {
		o.Events.Eventf(about, nil, corev1.EventTypeWarning, reason, action, "%s", note)
	}
}
