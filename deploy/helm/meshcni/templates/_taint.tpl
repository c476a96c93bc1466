{{/* The taint's controller. Its pods' names begin as the agents' do: the plugin lets such pods start whatever is wrong with it, and the
controller must not wait for what it is to report. */}}
{{- define "meshcni.taintName" -}}{{ include "meshcni.name" . }}-taint{{- end -}}

{{- define "meshcni.taintSelector" -}}
app.kubernetes.io/name: {{ include "meshcni.appName" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: taint
{{- end -}}

{{- define "meshcni.taintLabels" -}}
{{- include "meshcni.labelsOf" (dict "root" . "component" "taint" "more" (dict "sidecar.istio.io/inject" "false" "istio.io/dataplane-mode" "none" "kuma.io/sidecar-injection" "disabled")) -}}
{{- end -}}

{{/* The taints that are removed, a YAML list of keys. */}}
{{- define "meshcni.taintKeys" -}}
{{- toYaml (concat (list .Values.taint.key) .Values.taint.alsoRemove | uniq) -}}
{{- end -}}

{{/* The agents' tolerations, a YAML list: with the taint's controller also of the taints that wait for them. */}}
{{- define "meshcni.tolerations" -}}
{{- $all := .Values.tolerations | default list -}}
{{- $any := false -}}
{{- range $all }}{{ if and (eq (get . "operator") "Exists") (not (get . "key")) (not (get . "effect")) }}{{ $any = true }}{{ end }}{{ end -}}
{{- if and .Values.taint.enabled (not $any) -}}
{{- range include "meshcni.taintKeys" . | fromYamlArray }}{{ $all = append $all (dict "key" . "operator" "Exists") }}{{ end -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* Flags that every command of the controller's takes, a YAML list. */}}
{{- define "meshcni.taintArgs" -}}
{{- $args := list (printf "--taint-key=%s" .Values.taint.key) (printf "--also-remove=%s" (join "," .Values.taint.alsoRemove)) -}}
{{- range concat $args (include "meshcni.apiServerArgs" . | fromYamlArray) }}
- {{ include "meshcni.literal" . | quote }}
{{- end }}
{{- end -}}

{{/* What each of the controller's containers may do on the node: nothing. */}}
{{- define "meshcni.taintSecurity" -}}
runAsUser: 65532
runAsGroup: 65532
runAsNonRoot: true
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* What it may do in the cluster: the rules of deploy/rbac/taint.yaml. */}}
{{- define "meshcni.taintNodeRules" -}}
# RBAC has no right for taints alone: who may patch nodes may also label them.
- apiGroups: [""]
  resources: ["nodes"]
  verbs: ["get", "list", "watch", "patch"]
{{- end -}}
