// Package readiness decides whether the next Pod that a SidecarSet selects will be injected,
// given what the leader knows. It decides which reason comes first, and writes the message. It
// does not know how the leader found the facts.
package readiness

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/status"
)

// Installation are the facts that concern every SidecarSet.
type Installation struct {
	// Namespace is the operator's.
	Namespace string
	// Rival is the message about another injector; "" if there is none.
	Rival string
	// Served is false if no replica can answer.
	Served bool
	// Certificate says why API servers would refuse the serving certificate; nil if they
	// would not, or if calls prove that they do not.
	Certificate error
	// Calls says that calls of API servers are not answered; nil if no such calls are known.
	Calls *status.Readiness
}

// Obstacle says why no SidecarSet is ready; nil if this does not follow from the facts.
func (i Installation) Obstacle() *status.Readiness {
	switch {
	case i.Rival != "":
		return No(appsv1beta1.ReasonAnotherInjector, i.Rival)
	case !i.Served:
		return No(appsv1beta1.ReasonNoReplica, "No replica of the operator answers webhooks: selected Pods are refused, or created without sidecars where "+
			appsv1beta1.AnnotationFailurePolicy+" is Ignore. Look at the operator's Pods in namespace "+i.Namespace+".")
	case i.Certificate != nil:
		reason := appsv1beta1.ReasonCertificateNotTrusted
		if invalid, is := errors.AsType[x509.CertificateInvalidError](i.Certificate); is && invalid.Reason == x509.Expired {
			reason = appsv1beta1.ReasonCertificateExpired
		}
		return No(reason, "API servers do not accept the certificate of the webhooks: "+i.Certificate.Error())
	}
	return i.Calls
}

// SidecarSet are the facts about one SidecarSet.
type SidecarSet struct {
	// Selectors is why no webhook entry can have the selectors; nil if one can.
	Selectors error
	// Refused is the API server's message about the entry; "" if it takes the entry.
	Refused string
	// Nothing says why no Pod can be selected; "" if one can.
	Nothing string
	// Paused is spec.injectionStrategy.paused.
	Paused bool
	// Invalid is the error that any Pod would get; nil if there is none.
	Invalid error
	// Static has the facts about the entry that an administrator keeps; nil if the operator
	// keeps one. Entry has the facts about the operator's entry.
	Entry  Entry
	Static *Static
}

// Entry are the facts about the webhook entry of a SidecarSet.
type Entry struct {
	// NoObject says why no object can hold the entry, and what a user has to do; "" if one
	// can.
	NoObject string
	// Fought is the object with the entry, if another program keeps editing it; "" if none
	// does.
	Fought string
	// By names the program that edited it last; "" if that is not known.
	By string
	// Narrowed is what another program leaves out of the entry; "" if nothing. LeavesAllOut is
	// true if that leaves out every Namespace that the entry selects.
	Narrowed     string
	LeavesAllOut bool
	// Written is true if an object holds the entry, as the leader wrote it for this content
	// of the SidecarSet. Proven is true if, moreover, every API server that can be reached
	// uses it.
	Written, Proven bool
	// Problem says why it is not written, or not proven; "" if nothing is known.
	Problem string
	// Coarse is true if the SidecarSet has no entry of its own.
	Coarse bool
}

// Static are the facts about the one entry that an administrator keeps.
type Static struct {
	// Present is true if some webhook configuration has it.
	Present bool
	// Trust is for how much longer a replica may trust an older snapshot.
	Trust time.Duration
}

// Of decides whether the next selected Pod will be injected, if Installation has no
// Obstacle.
func Of(s SidecarSet) status.Readiness {
	var why *status.Readiness
	switch {
	case s.Selectors != nil:
		why = No(appsv1beta1.ReasonEntryRefused, "The selectors are not valid in a webhook entry: "+s.Selectors.Error())
	case s.Refused != "":
		why = No(appsv1beta1.ReasonEntryRefused, "The API server refused the webhook entry: "+s.Refused)
	case s.Nothing != "":
		why = No(appsv1beta1.ReasonNothingSelected, s.Nothing+".")
	case s.Paused:
		why = No(appsv1beta1.ReasonPaused, "New Pods are not injected while spec.injectionStrategy.paused is true.")
	case s.Invalid != nil:
		why = No(appsv1beta1.ReasonInvalid, "Selected Pods are refused: "+s.Invalid.Error())
	case s.Static != nil:
		why = s.Static.obstacle()
	default:
		why = s.Entry.obstacle()
	}
	if why != nil {
		return *why
	}
	is := ready(s.Static == nil && s.Entry.Coarse)
	if s.Static == nil && s.Entry.Narrowed != "" {
		is.Message += " Another program leaves out " + s.Entry.Narrowed + "."
	}
	return is
}

func (e Entry) obstacle() *status.Readiness {
	switch {
	case e.NoObject != "":
		return No(appsv1beta1.ReasonEntryMissing, e.NoObject)
	case e.Fought != "":
		program := "Another program"
		if e.By != "" {
			program += " (field manager " + e.By + ")"
		}
		return No(appsv1beta1.ReasonEntryEdited, fmt.Sprintf(program+" keeps editing the webhook entries in MutatingWebhookConfiguration %s. The operator restores them each time. "+
			"Find the program with \"kubectl get mutatingwebhookconfiguration %[1]s --show-managed-fields -o yaml\", and configure it to ignore this object, or use --pod-webhook=static.", e.Fought))
	case e.LeavesAllOut:
		return No(appsv1beta1.ReasonEntryEdited, "Another program leaves out "+e.Narrowed+". These are all namespaces that the SidecarSet selects, so API servers do not call the operator. "+
			"Select other namespaces, or configure that program.")
	case !e.Written && e.Problem != "":
		return No(appsv1beta1.ReasonNotInForce, "The webhook entry for the selected Pods is not written: "+e.Problem)
	case !e.Written:
		return No(appsv1beta1.ReasonNotInForce, "The webhook entry for the selected Pods is not written yet.")
	case !e.Proven:
		message := "The webhook entry is written, but it is not proven yet that every API server uses it."
		if e.Problem != "" {
			message += " " + e.Problem
		}
		return Unsure(appsv1beta1.ReasonNotInForce, message)
	}
	return nil
}

func (s Static) obstacle() *status.Readiness {
	switch {
	case !s.Present:
		return No(appsv1beta1.ReasonEntryMissing, "No MutatingWebhookConfiguration sends new Pods to the operator, and with --pod-webhook=static the operator does not write one. "+
			"Apply config/overlays/static, or run the operator with --pod-webhook=exact.")
	case s.Trust > 0:
		return Unsure(appsv1beta1.ReasonNotInForce, fmt.Sprintf("A replica may still use an older snapshot of the SidecarSets, for %s at most.", s.Trust.Round(time.Second)))
	}
	return nil
}

// No says that the next Pod will not be injected.
func No(reason, message string) *status.Readiness {
	return &status.Readiness{Reason: reason, Message: message}
}

// Unsure says that it is not known whether the next Pod will be injected.
func Unsure(reason, message string) *status.Readiness {
	return &status.Readiness{Reason: reason, Message: message, Unsure: true}
}

func ready(coarse bool) status.Readiness {
	r := status.Readiness{Ready: true, Reason: appsv1beta1.ReasonReady, Message: "The next Pod that is selected will be injected."}
	if coarse {
		r.Reason = appsv1beta1.ReasonSharedEntry
		r.Message += fmt.Sprintf(" The limit of %d webhook entries is reached (fewer if selectors are very large), so this SidecarSet shares one entry that matches all Pods. Let SidecarSets share selectors, or shorten their selectors.",
			entryplan.MaxConfigurations*entryplan.MaxEntries-1)
	}
	return r
}
