{{/*
labels prints the labels of an object. Call it with (list $ COMPONENT).
*/}}
{{- define "sidecarset.labels" -}}
{{- $root := index . 0 -}}
{{- $labels := dict
  "app.kubernetes.io/name" "sidecarset-operator"
  "app.kubernetes.io/instance" $root.Release.Name
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "app.kubernetes.io/component" (index . 1)
  "app.kubernetes.io/part-of" "sidecarset"
  "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{ toYaml (merge $labels $root.Values.labels) }}
{{- end }}

{{/*
meta prints labels and annotations for the metadata of an object. Call it with (list $ COMPONENT), or
(list $ COMPONENT ANNOTATIONS).
*/}}
{{- define "sidecarset.meta" -}}
{{- $root := index . 0 -}}
{{- $own := dict -}}
{{- if gt (len .) 2 }}{{ $own = index . 2 }}{{ end -}}
labels:
  {{- include "sidecarset.labels" . | nindent 2 }}
{{- with merge dict $own $root.Values.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
webhookMeta is meta for a webhook configuration. Call it with (list $ LABELS ANNOTATIONS). AKS leaves
configurations with the label, or with the annotation, as they are. The operator keeps both.
*/}}
{{- define "sidecarset.webhookMeta" -}}
{{- $root := index . 0 -}}
{{- $optOut := dict "admissions.enforcer/disabled" "true" -}}
labels:
  {{- toYaml (merge dict $optOut (index . 1) (include "sidecarset.labels" (list $root "operator") | fromYaml)) | nindent 2 }}
annotations:
  {{- toYaml (merge dict $optOut (index . 2) $root.Values.annotations) | nindent 2 }}
{{- end }}

{{/*
copy prints an object of files/, a copy of a manifest of config/, for this release. Call it with (list $ OBJECT).
*/}}
{{- define "sidecarset.copy" -}}
{{- $root := index . 0 -}}
{{- $object := index . 1 -}}
{{- $meta := include "sidecarset.meta" (list $root "operator") | fromYaml -}}
{{- $_ := set $object "metadata" (mergeOverwrite $meta $object.metadata) -}}
{{- if eq (default "" $object.metadata.namespace) "sidecarset-system" -}}
{{- $_ := set $object.metadata "namespace" $root.Release.Namespace -}}
{{- end -}}
{{ toYaml $object }}
{{- end }}

{{/*
deployments prints the Deployments of the profile. The subjects of a role are their ServiceAccounts.
*/}}
{{- define "sidecarset.deployments" -}}
{{- if eq .Values.profile "default" -}}
- {name: sidecarset-operator, role: all, component: operator, replicas: {{ .Values.replicas.default }}}
{{- else -}}
- {name: sidecarset-webhook, role: webhook, component: webhook, replicas: {{ .Values.replicas.webhook }}}
- {name: sidecarset-controller, role: controller, component: controller, replicas: {{ .Values.replicas.controller }}}
{{- end -}}
{{- end }}

{{/*
binding prints the binding of a role to the ServiceAccounts of the processes that have it. Call it
with (list $ ROLE NAMESPACE); without a namespace it is a ClusterRoleBinding.
*/}}
{{- define "sidecarset.binding" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
{{- $namespace := index . 2 -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ if $namespace }}RoleBinding{{ else }}ClusterRoleBinding{{ end }}
metadata:
  {{- with $namespace }}
  namespace: {{ . }}
  {{- end }}
  name: {{ $role }}
  {{- include "sidecarset.meta" (list $root "operator") | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ if $namespace }}Role{{ else }}ClusterRole{{ end }}
  name: {{ $role }}
subjects:
{{- range include "sidecarset.deployments" $root | fromYamlArray }}
{{- if or (eq .role "all") (has $role (list "sidecarset-operator" "sidecarset-certificates")) (eq $role .name) (and (eq .role "controller") (eq $role "sidecarset-certificates-leader")) }}
- kind: ServiceAccount
  namespace: {{ $root.Release.Namespace }}
  name: {{ .name }}
{{- end }}
{{- end }}
{{- end }}

{{/*
certificateSecret is the Secret with the serving certificate, or with the CA in mode self.
*/}}
{{- define "sidecarset.certificateSecret" -}}
{{- if eq .Values.certificates.mode "self" -}}
sidecarset-webhook-certs
{{- else if eq .Values.certificates.mode "files" -}}
{{ required "certificates.secretName: name the Secret with tls.crt, tls.key and ca.crt" .Values.certificates.secretName }}
{{- else -}}
sidecarset-serving
{{- end -}}
{{- end }}

{{/*
goMemoryLimit is the value of GOMEMLIMIT: seven eighths of the memory limit, if values do not say it.
*/}}
{{- define "sidecarset.goMemoryLimit" -}}
{{- $limit := toString (dig "limits" "memory" "" (default dict .Values.resources)) -}}
{{- if .Values.goMemoryLimit -}}
{{ .Values.goMemoryLimit }}
{{- else if regexMatch "^[0-9]+Gi$" $limit -}}
{{ mul 896 (trimSuffix "Gi" $limit | int64) }}MiB
{{- else if regexMatch "^[0-9]+Mi$" $limit -}}
{{ div (mul 7 (trimSuffix "Mi" $limit | int64)) 8 }}MiB
{{- else if $limit -}}
{{ fail (printf "goMemoryLimit: set it to seven eighths of resources.limits.memory, which is %s and neither in Mi nor in Gi" $limit) }}
{{- end -}}
{{- end }}

{{/*
scraper is "true" if the chart makes a ServiceAccount whose token Prometheus shows.
*/}}
{{- define "sidecarset.scraper" -}}
{{ and .Values.serviceMonitor.enabled (not .Values.serviceMonitor.authorization) }}
{{- end }}

{{/*
selector prints the labels by which Services and policies select the Pods that serve webhooks.
*/}}
{{- define "sidecarset.serving" -}}
app.kubernetes.io/name: sidecarset-operator
{{- if eq .Values.profile "hardened" }}
app.kubernetes.io/component: webhook
{{- end }}
{{- end }}
