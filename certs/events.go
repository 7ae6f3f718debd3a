package certs

import (
	corev1 "k8s.io/api/core/v1"
)

// Reasons of the events on the CA Secret, in mode self.
const (
	// ReasonCARestored says that the CA Secret had been deleted and that the CA is there again.
	ReasonCARestored = "CARestored"
	// ReasonCAReplaced says that the CA could not be used and that there is another one now.
	ReasonCAReplaced = "CAReplaced"
	// ReasonCAUnusable says that the CA cannot be used and that it is not the operator's to replace. What is served is served on.
	ReasonCAUnusable = "CAUnusable"
	// ReasonClockDiffers says that the leader's clock differs from the API servers', so that it does not write the Secret.
	ReasonClockDiffers = "ClockDiffers"
	// ReasonRotationPostponed says that a rotation waits because too much is trusted already.
	ReasonRotationPostponed = "RotationPostponed"
	// ReasonTrustAdded says that somebody has put certificates into ca.crt.
	ReasonTrustAdded = "TrustAdded"
	// ReasonForeignCA says that somebody else has put another CA into the Secret. It is used.
	ReasonForeignCA = "ForeignCA"
)

// warn tells people about an object. The note must hold nothing secret.
func (o Options) warn(about *corev1.ObjectReference, reason, action, note string) {
	if o.Events != nil {
		o.Events.Eventf(about, nil, corev1.EventTypeWarning, reason, action, "%s", note)
	}
}

// secretReference is the CA Secret as events name it.
func (s *SelfManaged) secretReference() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Secret", Namespace: s.opts.Namespace, Name: s.opts.SecretName}
}
