package certs

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
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

	// CALifetime is how long a CA is valid; default one year. The leader rotates it after two thirds of that, unattended, so a longer
	// life has no advantage, and an operation that happens often is known to work. Mode files does not use it.
	CALifetime time.Duration
	// LeafLifetime is how long a serving certificate is valid; default 30 days. It is renewed after 20. That leaves ten days to repair
	// what keeps a replica from reading the Secret. In mode self it is also how long an old CA stays in the bundle after a rotation.
	// Mode files does not use it.
	LeafLifetime time.Duration
	// Settle is how long every client must have had the next CA in its bundle before that CA signs, or before a leaf of it is served;
	// default ten minutes. API servers follow within milliseconds, and a rotation has time.
	Settle time.Duration
	// Overlap is how long a CA stays in the bundle after the material stopped naming it, in the modes cert-manager and files; default
	// one hour. In that time every replica must notice the new material. That takes seconds, or as long as a kubelet takes to update a
	// volume.
	Overlap time.Duration
	// Poll is how often each replica reads the Secret or the files and looks at the wall clock; default ten seconds.
	Poll time.Duration
	// Patience is how long cert-manager may take before a missing certificate is reported as an error; default two minutes.
	Patience time.Duration
	// PublishedElsewhere says that another program, such as cert-manager's cainjector, writes the bundle into the objects of the
	// manifests. Then the leader writes only targets that are Optional. Mode files only.
	PublishedElsewhere bool

	// Events receives what administrators need to know. If it is nil, no events are emitted.
	Events events.EventRecorder
	// Clock shows the time that certificates are compared with, if ServerClock is nil; the real time if nil. Durations are measured
	// with the process's monotonic clock, which does not change when the clock is set.
	Clock clock.PassiveClock
	// ServerClock reads the clock, and knows how wrong it is. If it is nil, Clock counts as correct, except that Setup has a
	// ServerClock learn from the API servers' answers.
	ServerClock *ServerClock
}

// complete fills in defaults and checks what was given.
func (o Options) complete() (Options, error) {
	o.Mode = cmp.Or(o.Mode, ModeSelf)
	o.CALifetime = cmp.Or(o.CALifetime, 365*24*time.Hour)
	o.LeafLifetime = cmp.Or(o.LeafLifetime, 30*24*time.Hour)
	o.Settle = cmp.Or(o.Settle, 10*time.Minute)
	o.Overlap = cmp.Or(o.Overlap, time.Hour)
	o.Poll = cmp.Or(o.Poll, 10*time.Second)
	o.Patience = cmp.Or(o.Patience, 2*time.Minute)
	o.ServerClock = cmp.Or(o.ServerClock, NewServerClock(o.Clock))
	return o, o.validate()
}

// Validate returns everything that is wrong with the options. A zero value means the default.
func (o Options) Validate() error {
	_, err := o.complete()
	return err
}

func (o Options) validate() error {
	var errs []error
	switch o.Mode {
	case ModeSelf:
		if o.Namespace == "" || o.SecretName == "" {
			errs = append(errs, errors.New("the CA Secret has no namespace or no name"))
		}
		errs = append(errs, o.validateLifetimes(o.Settle)...)
		// A leaf is renewed in the last third of its life, and a replica looks every Poll.
		if o.LeafLifetime/3 < 2*o.Poll {
			errs = append(errs, fmt.Errorf("a third of a leaf's lifetime of %s is less than two polls of %s", o.LeafLifetime, o.Poll))
		}
	case ModeCertManager:
		if o.Namespace == "" {
			errs = append(errs, errors.New("what is declared to cert-manager has no namespace"))
		}
		errs = append(errs, o.validateLifetimes(0)...)
		if o.LeafLifetime < time.Hour { // cert-manager's own bound
			errs = append(errs, fmt.Errorf("cert-manager issues no certificate for less than an hour, and a leaf's lifetime is %s", o.LeafLifetime))
		}
	case ModeFiles:
		if o.Directory == "" {
			errs = append(errs, errors.New("there is no directory to read certificates from"))
		}
	default:
		errs = append(errs, fmt.Errorf("certificates cannot come from %q: use %s, %s or %s", o.Mode, ModeSelf, ModeCertManager, ModeFiles))
	}
	if o.PublishedElsewhere && o.Mode != ModeFiles {
		errs = append(errs, fmt.Errorf("in mode %s the operator itself publishes the CA bundle", o.Mode))
	}
	if len(o.Subject.DNSNames)+len(o.Subject.IPs) == 0 {
		errs = append(errs, errors.New("the serving certificate has neither a DNS name nor an IP address"))
	}
	if min(o.CALifetime, o.LeafLifetime, o.Settle, o.Overlap, o.Poll, o.Patience) < 0 {
		errs = append(errs, errors.New("a duration is negative"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("configuring certificates: %w", err)
	}
	return nil
}

// validateLifetimes checks that a CA outlives its leaves. The CA is replaced in the last third of its life, and a leaf that it
// signed just before must remain valid until its own end.
func (o Options) validateLifetimes(settle time.Duration) []error {
	if o.CALifetime/3 >= o.LeafLifetime+settle {
		return nil
	}
	return []error{fmt.Errorf("a third of the CA's lifetime of %s is less than a leaf's of %s and the time to settle of %s",
		o.CALifetime, o.LeafLifetime, settle)}
}

func (o Options) policy() Policy {
	return Policy{CALifetime: o.CALifetime, LeafLifetime: o.LeafLifetime, Subject: o.Subject}
}
