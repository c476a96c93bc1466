{{/* Whether the API server is given policies that bind tokens to their nodes. It has such policies since Kubernetes 1.30, and since then
tokens name their node. Of a server that can be asked, what it serves counts too. Empty is no. */}}
{{- define "meshcni.asked" -}}{{ if .Capabilities.APIVersions.Has "v1/Pod" }}yes{{ end }}{{- end -}}
{{- define "meshcni.admits" -}}
{{- $has := or (not (include "meshcni.asked" .)) (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") -}}
{{- if eq (toString .Values.admission.enabled) "true" }}yes
{{- else if and (eq (toString .Values.admission.enabled) "auto") $has (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) }}yes
{{- end -}}
{{- end -}}

{{/* Whether the agent is granted to evict pods. With repair.mode auto, only where the API server is known to confine that to the agent's node: it was
asked, or the values say so. Empty is no. */}}
{{- define "meshcni.evicts" -}}
{{- $known := or (include "meshcni.asked" .) (eq (toString .Values.admission.enabled) "true") -}}
{{- if or (eq .Values.repair.mode "delete") (and (eq .Values.repair.mode "auto") (include "meshcni.admits" .) $known) }}yes{{ end -}}
{{- end -}}

{{- define "meshcni.agentUser" -}}system:serviceaccount:{{ .Release.Namespace }}:{{ include "meshcni.serviceAccountName" . }}{{- end -}}
{{- define "meshcni.pluginUser" -}}system:serviceaccount:{{ .Release.Namespace }}:{{ (include "meshcni.pluginAccountName" .) }}{{- end -}}

{{/* What an account may change in a pod's metadata, as YAML: {labels: {KEY: [VALUE]}, annotations: {KEY: [VALUE]}}; it may also take
the key away. Use: (dict "root" . "account" "agent"), or "plugin". Where the plugin has the agent's token, the agent's account may do what the plugin does. */}}
{{- define "meshcni.mayMark" -}}
{{- $labels := dict -}}
{{- $annotations := dict -}}
{{- $plugin := dict -}}
{{- with .root -}}
{{- if and .Values.writeStatus (has "consul" (include "meshcni.dialects" . | fromYamlArray)) -}}
{{- $_ := set $plugin "consul.hashicorp.com/transparent-proxy-status" (list "complete") -}}
{{- end -}}
{{- if eq $.account "plugin" -}}
{{- $annotations = $plugin -}}
{{- else -}}
{{- if semverCompare "<1.31.0-0" .Capabilities.KubeVersion.Version }}{{ $annotations = $plugin }}{{ end -}}
{{- if include "meshcni.holdsPods" . }}{{ $_ := set $annotations "ambient.istio.io/redirection" (list "enabled" "pending") }}{{ end -}}
{{- if eq .Values.repair.mode "label" -}}
{{- $label := .Values.repair.label | default (printf "%snot-redirected=true" (include "meshcni.prefix" .)) | splitn "=" 2 -}}
{{- $_ := set $labels $label._0 (list $label._1) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml (dict "labels" $labels "annotations" $annotations) -}}
{{- end -}}

{{/* All writes of the agent's mode, a YAML list: the operation, the resource and its group as the policies write them. */}}
{{- define "meshcni.agentWrites" -}}
- CREATE events
- UPDATE events
- CREATE serviceaccounts/token
{{- $mark := include "meshcni.mayMark" (dict "root" . "account" "agent") | fromYaml }}
{{- if or $mark.labels $mark.annotations }}
- UPDATE pods/status
{{- end }}
{{- if has .Values.repair.mode (list "auto" "delete") }}
- CREATE pods/eviction
{{- end }}
{{- if eq .Values.repair.mode "delete" }}
{{- if .Values.repair.forceDelete }}
- DELETE pods
{{- end }}
{{- end }}
{{- end -}}

{{- define "meshcni.pluginWrites" -}}
{{- $mark := include "meshcni.mayMark" (dict "root" . "account" "plugin") | fromYaml -}}
{{- if $mark.annotations -}}
- UPDATE pods/status
{{- else -}}
[]
{{- end -}}
{{- end -}}

{{/* A policy for some users' requests, with its binding. The variable "node" is the node that the token names; empty if it names none. Use:
(dict "root" . "name" "…" "component" "…" "users" (list "…") "rules" LIST "variables" LIST "validations" LIST "pods" true "nodeless" "…"),
where pods makes it hold for each pod of the request's namespace, as params, and nodeless is the condition on which a token may name none. */}}
{{- define "meshcni.admissionPolicy" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}
  labels:
    {{- include "meshcni.labelsOf" . | nindent 4 }}
spec:
  failurePolicy: Fail
  {{- if .pods }}
  paramKind: {apiVersion: v1, kind: Pod}
  {{- end }}
  matchConstraints:
    resourceRules:
      {{- toYaml .rules | nindent 6 }}
  matchConditions:
    - name: {{ .component }}
      expression: request.userInfo.username in {{ .users | toJson }}
  variables:
    - name: node
      expression: request.userInfo.?extra['authentication.kubernetes.io/node-name'][0].orValue('')
    - name: who
      expression: "request.userInfo.username + (variables.node == '' ? '' : ' of node ' + variables.node)"
    {{- with .variables }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  validations:
    - expression: >-
        {{- .nodeless | default "variables.node != ''" | nindent 8 }}
      messageExpression: >-
        variables.who + ' has a token that names no node: those that are bound to a pod or a node do (authentication.kubernetes.io/node-name, since Kubernetes 1.30). The value admission.enabled of the chart of meshcni switches this policy off'
      reason: Forbidden
    {{- range .validations }}
    - expression: >-
        {{- .expression | nindent 8 }}
      messageExpression: >-
        {{- printf "variables.who + ' %s'" .says | nindent 8 }}
      reason: Forbidden
    {{- end }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include "meshcni.labelsOf" . | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
  {{- if .pods }}
  paramRef:
    # Each pod of the request's namespace.
    selector: {}
    # Without any, nothing is about one.
    parameterNotFoundAction: Allow
  {{- end }}
{{- end -}}

{{/* The policy for what an account writes to pods: those of its node, and only the marks that are its own. Use:
(dict "root" . "account" "agent" "users" LIST "rules" LIST); without users it holds for nobody */}}
{{- define "meshcni.podPolicy" -}}
{{- $mark := include "meshcni.mayMark" . | fromYaml -}}
{{- $variables := list
      (dict "name" "mayLabel" "expression" (toJson $mark.labels))
      (dict "name" "mayAnnotate" "expression" (toJson $mark.annotations)) -}}
{{- range $in := list "labels" "annotations" -}}
{{- $variables = append $variables (dict "name" $in "expression" (printf "object.metadata.?%s.orValue({})" $in)) -}}
{{- $variables = append $variables (dict "name" (printf "%sBefore" $in) "expression" (printf "oldObject.metadata.?%s.orValue({})" $in)) -}}
{{- end -}}
{{- $validations := list (dict "says" "may change pods of its own node only"
      "expression" "oldObject.spec.?nodeName.orValue('') == variables.node") -}}
{{- range $in, $may := dict "labels" "mayLabel" "annotations" "mayAnnotate" -}}
{{- $marks := get $mark $in -}}
{{- $says := printf "may change no %s of a pod" $in -}}
{{- with $marks }}{{ $says = printf "may change no %s of a pod but %s" $in (keys . | sortAlpha | join ", ") }}{{ end -}}
{{- $validations = append $validations (dict "says" $says "expression" (printf (join "\n" (list
      "request.operation == 'DELETE' ||"
      "(variables.%[1]s.all(k, variables.%[1]sBefore[?k] == optional.of(variables.%[1]s[k]) || variables.%[1]s[k] in variables.%[2]s[?k].orValue([])) &&"
      "variables.%[1]sBefore.all(k, k in variables.%[1]s || k in variables.%[2]s))")) $in $may)) -}}
{{- end -}}
{{- $validations = append $validations (dict "says" "may change nothing else of a pod"
      "expression" (join "\n" (list
        "request.operation == 'DELETE' ||"
        "(object.?status == oldObject.?status &&"
        "object.metadata.?finalizers == oldObject.metadata.?finalizers &&"
        "object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences)"))) -}}
{{- include "meshcni.admissionPolicy" (dict "root" .root "name" (include "meshcni.own" (list .root (printf "%s-pods" .account))) "component" .account "users" .users
      "rules" .rules "variables" $variables "validations" $validations) -}}
{{- end -}}
