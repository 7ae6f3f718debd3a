package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/manifest"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/podtemplate"
)

// asker asks a cluster about SidecarSets, under dry-run.
type asker struct {
	ctx       context.Context
	server    rest.Interface
	namespace string // for PodTemplates
	isMissing bool   // the cluster does not have the kind SidecarSet
}

// asker returns the function by which lint asks the cluster.
func (a *app) asker(ctx context.Context) (func(*manifest.Object, *hub.SidecarSet) (podtemplate.Verdict, error), error) {
	_, config, err := a.client()
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{} // they become findings
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	namespace, err := a.namespace()
	if err != nil {
		return nil, err
	}
	asks := &asker{ctx: ctx, server: client.RESTClient(), namespace: namespace}
	return asks.ask, nil
}

// ask applies a SidecarSet. If the cluster does not have the kind, it asks whether Pods may have
// the containers and volumes.
func (a *asker) ask(o *manifest.Object, set *hub.SidecarSet) (podtemplate.Verdict, error) {
	if !a.isMissing {
		verdict, err := a.apply(o)
		if !apierrors.IsNotFound(err) {
			return verdict, err
		}
		a.isMissing = true
	}
	question := podtemplate.New(set)
	answer, warnings, err := a.send(http.MethodPost, "/api/v1/namespaces/"+a.namespace+"/podtemplates", question.Body())
	verdict, err := question.Read(answer, warnings, err)
	if err != nil {
		err = fmt.Errorf("asking the API server about a PodTemplate in namespace %s: %w; --namespace names another one", a.namespace, err)
	}
	return verdict, err
}

// apply creates the SidecarSet of a manifest under dry-run, or replaces the stored one.
func (a *asker) apply(o *manifest.Object) (verdict podtemplate.Verdict, err error) {
	object := &unstructured.Unstructured{Object: asWritten(o.Value)}
	path := "/apis/" + o.APIVersion + "/sidecarsets"
	warnings, err := a.write(http.MethodPost, path, object)
	if apierrors.IsAlreadyExists(err) {
		path += "/" + object.GetName()
		var stored []byte
		if stored, _, err = a.send(http.MethodGet, path, nil); err != nil {
			return verdict, fmt.Errorf("reading the stored SidecarSet: %w", err)
		}
		var before unstructured.Unstructured
		if err := json.Unmarshal(stored, &before.Object); err != nil {
			return verdict, fmt.Errorf("reading the stored SidecarSet: %w", err)
		}
		object.SetResourceVersion(before.GetResourceVersion())
		warnings, err = a.write(http.MethodPut, path, object)
	}
	for _, text := range warnings {
		if found := unknownMember.FindStringSubmatch(text); found != nil {
			verdict.Refused = append(verdict.Refused, &field.Error{Type: field.ErrorTypeForbidden, Field: found[1],
				Detail: "is unknown to the cluster, so that kubectl refuses it; correct or remove it"})
			continue
		}
		verdict.Warnings = append(verdict.Warnings, text)
	}
	var status apierrors.APIStatus
	switch {
	case err == nil || apierrors.IsNotFound(err):
		return verdict, err
	case !errors.As(err, &status) || status.Status().Code >= http.StatusInternalServerError:
		return verdict, fmt.Errorf("asking the API server: %w", err)
	}
	s := status.Status()
	if s.Details == nil || len(s.Details.Causes) == 0 || s.Details.Causes[0].Field == "" {
		verdict.Refused = append(verdict.Refused, &field.Error{Type: field.ErrorTypeForbidden, Detail: s.Message})
		return verdict, nil
	}
	for _, cause := range s.Details.Causes {
		kind := field.ErrorType(cause.Type)
		verdict.Refused = append(verdict.Refused, &field.Error{Type: kind, Field: cause.Field, BadValue: field.OmitValueType{},
			Detail: strings.TrimPrefix(strings.TrimPrefix(cause.Message, kind.String()), ": ")})
	}
	return verdict, nil
}

var unknownMember = regexp.MustCompile(`^unknown field "(.+)"$`)

func (a *asker) write(verb, path string, object *unstructured.Unstructured) (warnings []string, err error) {
	body, err := object.MarshalJSON()
	if err != nil {
		return nil, err
	}
	_, warnings, err = a.send(verb, path, body)
	return warnings, err
}

// send sends a request. A request that writes stores nothing.
func (a *asker) send(verb, path string, body []byte) (answer []byte, warnings []string, err error) {
	request := a.server.Verb(verb).AbsPath(path)
	if verb != http.MethodGet {
		request = request.Param("dryRun", podtemplate.DryRun).Param("fieldValidation", podtemplate.FieldValidation).SetHeader("Content-Type", "application/json").Body(body)
	}
	result := request.Do(a.ctx)
	for _, warning := range result.Warnings() {
		warnings = append(warnings, warning.Text)
	}
	answer, _ = result.Raw()
	return answer, warnings, result.Error()
}
