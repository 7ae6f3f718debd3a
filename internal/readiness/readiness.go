// Package readiness decides whether the next Pod that a SidecarSet selects will be injected,
// given what the leader knows. It decides which reason comes first, and writes the message. It
// does not know how the leader found the facts.
package readiness

import (
	"crypto/x509"
	"errors"
	"fmt"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/status"
)

// Installation are the facts that concern every SidecarSet.
type Installation struct {
	// Namespace is the operator's.
	Namespace string
	// OtherInjector is the message about another injector; "" if there is none.
	OtherInjector string
	// Served is false if no replica can answer.
	Served bool
	// Certificate says why API servers would refuse the serving certificate; nil if they
	// would not, or if calls prove that they do not.
	Certificate error
	// Calls says that calls of API servers are not answered; nil if no such calls are known.
	Calls *status.Readiness
	// LeftOut names the published addresses of API servers at which none answers, with the
	// reasons; "" if there are none. Whether these API servers use webhooks is not known.
	LeftOut string
}

// Complete adds what the installation leaves open to what Of has decided.
func (i Installation) Complete(r status.Readiness) status.Readiness {
	if i.LeftOut != "" && (r.Ready || r.Reason == appsv1beta1.ReasonPending || r.Reason == appsv1beta1.ReasonWebhookUnreachable) {
		r.Message += " These addresses of API servers are left out, because none answers the operator there: " + i.LeftOut + "."
	}
	return r
}

// Obstacle says why no SidecarSet is ready; nil if this does not follow from the facts.
func (i Installation) Obstacle() *status.Readiness {
	switch {
	case i.OtherInjector != "":
		return No(appsv1beta1.ReasonAnotherInjector, i.OtherInjector)
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
	// Selectors is why no Pod webhook can have the selectors; nil if one can.
	Selectors error
	// Nothing says why no Pod can be selected; "" if one can.
	Nothing string
	// Paused is spec.injectionStrategy.paused.
	Paused bool
	// Invalid is the error that any Pod would get; nil if there is none.
	Invalid error
	// Conflict is a conflict with a SidecarSet that was created before; "" if there is none. Pods
	// that both select are refused.
	Conflict string
	// PodSecurity says in which Namespaces Pod Security refuses Pods with the sidecars; "" if in
	// none. They are selected nevertheless, so the SidecarSet is ready.
	PodSecurity string
	// Static has the facts about the webhook that an administrator keeps; nil if the operator
	// keeps one. Webhook has the facts about the operator's webhook.
	Webhook Webhook
	Static  *Static
}

// Webhook are the facts about the Pod webhook of a SidecarSet.
type Webhook struct {
	// NoObject says why no object can hold the webhook, and what a user has to do; "" if one
	// can.
	NoObject string
	// NoPlace says why the webhook has no place in its object, and what a user has to do; nil if it
	// has one.
	NoPlace error
	// Modified is the object with the webhook, if another program keeps editing it; "" if none
	// does.
	Modified string
	// By names the program that edited it last; "" if that is not known.
	By string
	// Restricted is what another program leaves out of the webhook; "" if nothing. ExcludesAll is
	// true if that leaves out every Namespace that the webhook selects.
	Restricted  string
	ExcludesAll bool
	// Written is true if an object holds the webhook, as this version of the SidecarSet needs it.
	// Propagated is true if, moreover, every API server that can be reached uses it.
	Written, Propagated bool
	// Unasked is true if it is not known whether API servers use it, because the question is refused. Problem has the
	// refusal.
	Unasked bool
	// Problem is why it is not written, or not propagated; nil if nothing is known.
	Problem error
}

// Static are the facts about the one webhook that an administrator keeps.
type Static struct {
	// Present is true if some webhook configuration has it.
	Present bool
	// PropagationTime is true while another replica may not have seen the SidecarSet yet.
	PropagationTime bool
}

// Of decides whether the next selected Pod will be injected, if Installation has no
// Obstacle.
func Of(s SidecarSet) status.Readiness {
	var why *status.Readiness
	switch {
	case s.Selectors != nil:
		why = No(appsv1beta1.ReasonWebhookRejected, "The selectors are not valid in a Pod webhook: "+s.Selectors.Error())
	case s.Nothing != "":
		why = No(appsv1beta1.ReasonNothingSelected, s.Nothing+".")
	case s.Paused:
		why = No(appsv1beta1.ReasonPaused, "New Pods are not injected while spec.injectionStrategy.paused is true.")
	case s.Invalid != nil:
		why = No(appsv1beta1.ReasonInvalid, "Selected Pods are refused: "+s.Invalid.Error())
	case s.Conflict != "":
		why = No(appsv1beta1.ReasonConflict, "Pods that another SidecarSet selects as well are refused: "+s.Conflict)
	case s.Static != nil:
		why = s.Static.obstacle()
	default:
		why = s.Webhook.obstacle()
	}
	if why != nil {
		return *why
	}
	is := ready()
	if s.Static == nil && s.Webhook.Restricted != "" {
		is.Message += " Another program leaves out " + s.Webhook.Restricted + "."
	}
	if s.PodSecurity != "" {
		is.Message += " " + s.PodSecurity
	}
	return is
}

func (e Webhook) obstacle() *status.Readiness {
	switch {
	case e.NoObject != "":
		return No(appsv1beta1.ReasonWebhookConfigurationMissing, e.NoObject)
	case e.NoPlace != nil:
		return No(appsv1beta1.ReasonWebhookConfigurationFull, "There is no room for the Pod webhook: "+e.NoPlace.Error())
	case e.Modified != "":
		program := "Another program"
		if e.By != "" {
			program += " (field manager " + e.By + ")"
		}
		return No(appsv1beta1.ReasonWebhookModified, fmt.Sprintf(program+" keeps editing the Pod webhooks in MutatingWebhookConfiguration %s. The operator restores them each time. "+
			"Find the program with \"kubectl get mutatingwebhookconfiguration %[1]s --show-managed-fields -o yaml\", and configure it to ignore this object, or use --pod-webhook=static.", e.Modified))
	case e.ExcludesAll:
		return No(appsv1beta1.ReasonNamespacesExcluded, "Another program leaves out "+e.Restricted+". These are all namespaces that the SidecarSet selects, so API servers do not call the operator. "+
			"Select other namespaces, or configure that program.")
	case !e.Written && e.Problem != nil:
		return No(appsv1beta1.ReasonPending, "The Pod webhook is not written: "+e.Problem.Error())
	case !e.Written:
		return No(appsv1beta1.ReasonPending, "The Pod webhook is not written yet.")
	case !e.Propagated && e.Unasked:
		return Unsure(appsv1beta1.ReasonWebhookUnverified, fmt.Sprintf("The Pod webhook is written, but the operator cannot find out whether API servers use it, because its dry runs are refused. "+
			"Pods may be injected nevertheless. Exempt the operator's ConfigMaps, which it creates under dry-run only, from the quota, policy or webhook that refuses them: %v", e.Problem))
	case !e.Propagated:
		message := "The Pod webhook is written, but not every API server is known to use it yet."
		if e.Problem != nil {
			message += " If this lasts, restart the API servers that this names: " + e.Problem.Error()
		}
		return Unsure(appsv1beta1.ReasonPending, message)
	}
	return nil
}

func (s Static) obstacle() *status.Readiness {
	switch {
	case !s.Present:
		return No(appsv1beta1.ReasonWebhookConfigurationMissing, "No MutatingWebhookConfiguration sends new Pods to the operator, and with --pod-webhook=static the operator does not write one. "+
			"Apply config/overlays/static, or run the operator with --pod-webhook=exact.")
	case s.PropagationTime:
		return Unsure(appsv1beta1.ReasonPending, "A replica may not have seen the SidecarSet yet.")
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

func ready() status.Readiness {
	return status.Readiness{Ready: true, Reason: appsv1beta1.ReasonInjecting, Message: "The next Pod that is selected will be injected."}
}
