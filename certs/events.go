package certs

import (
	corev1 "k8s.io/api/core/v1"
)

// Reasons of the events on the CA Secret, in mode self.
const (
	// ReasonCARestored says that the CA Secret had been deleted, and that the same CA is stored again.
	ReasonCARestored = "CARestored"
	// ReasonCAReplaced says that the CA could not be used, and that another one is stored instead.
	ReasonCAReplaced = "CAReplaced"
	// ReasonCAUnusable says that the CA cannot be used, and that only an administrator may replace it. Replicas continue to serve
	// their certificates.
	ReasonCAUnusable = "CAUnusable"
	// ReasonClockDiffers says that the leader does not write the Secret, because its clock differs from the API servers'.
	ReasonClockDiffers = "ClockDiffers"
	// ReasonRotationPostponed says that a rotation waits because too many CAs are trusted already.
	ReasonRotationPostponed = "RotationPostponed"
	// ReasonTrustAdded says that another program or an administrator added certificates to ca.crt.
	ReasonTrustAdded = "TrustAdded"
	// ReasonForeignCA says that another program or an administrator put another CA into the Secret. The operator uses it.
	ReasonForeignCA = "ForeignCA"
)

// warn emits a Warning event about an object. The note must contain nothing secret.
func (o Options) warn(about *corev1.ObjectReference, reason, action, note string) {
	if o.Events != nil {
		o.Events.Eventf(about, nil, corev1.EventTypeWarning, reason, action, "%s", note)
	}
}

// secretReference is the reference to the CA Secret for events.
func (s *SelfManaged) secretReference() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Secret", Namespace: s.opts.Namespace, Name: s.opts.SecretName}
}
