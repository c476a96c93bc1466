{{/* A role's binding, to the agent's account unless others are named, in the release's namespace unless another is. Use:
(dict "root" . "kind" "ClusterRole" "name" "…" "component" "…" "accounts" (list "…") "namespace" "…") */}}
{{- define "meshcni.binding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  name: {{ .name }}
  {{- if eq .kind "Role" }}
  namespace: {{ .namespace | default .root.Release.Namespace | quote }}
  {{- end }}
  labels:
    {{- include "meshcni.labelsOf" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .name }}
subjects:
  {{- range .accounts | default (list (include "meshcni.serviceAccountName" .root)) }}
  - kind: ServiceAccount
    name: {{ . | quote }}
    namespace: {{ $.root.Release.Namespace | quote }}
  {{- end }}
{{- end -}}

{{/* Who has the plugin's rights: its own account; and the agent's, whose token the plugin has where tokens cannot be bound to nodes
(Kubernetes up to 1.30). Only the API server knows whether it can, so the agent has them whatever the version where they tell it nothing
that it may not list anyway. */}}
{{- define "meshcni.pluginAccounts" -}}
{{- $lists := or (include "meshcni.servesPods" .) .Values.ambient.enabled -}}
{{- if .Values.cni.enabled }}
- {{ (include "meshcni.pluginAccountName" .) | quote }}
{{- end }}
{{- if or (not .Values.cni.enabled) (and $lists (not .Values.writeStatus)) (semverCompare "<1.31.0-0" .Capabilities.KubeVersion.Version) }}
- {{ include "meshcni.serviceAccountName" . | quote }}
{{- end }}
{{- end -}}

{{/* The seconds of tokenLifetime. */}}
{{- define "meshcni.tokenSeconds" -}}
{{- $seconds := 0 -}}
{{- range $unit, $each := dict "h" 3600 "m" 60 "s" 1 -}}
{{- with regexFind (printf "[0-9]+%s" $unit) $.Values.tokenLifetime -}}
{{- $seconds = add $seconds (mul (trimSuffix $unit . | int) $each) -}}
{{- end -}}
{{- end -}}
{{- $seconds -}}
{{- end -}}

{{/* What the pods of a mesh whose proxy is on the node need: the rules of deploy/rbac/ambient.yaml. */}}
{{- define "meshcni.ambientRules" -}}
# The pods of its node. RBAC cannot restrict that to one node; the requests do.
- apiGroups: [""]
  resources: ["pods"]
  verbs: ["list", "watch"]
# The labels of the namespaces that have pods on its node; nothing else of them is asked for.
- apiGroups: [""]
  resources: ["namespaces"]
  verbs: ["list", "watch"]
# The mesh's control plane reads in an annotation whether a pod is captured. It is set through the status, which leaves the spec
# out of reach.
- apiGroups: [""]
  resources: ["pods/status"]
  verbs: ["patch"]
# What became of them, for kubectl describe.
- apiGroups: [""]
  resources: ["events"]
  verbs: ["create", "patch"]
{{- end -}}

{{/* Whether agents of this release hand pods to the node's proxy, or did until this upgrade: then they need their rights to release them, until
the new agents are ready. The next upgrade takes these away. Empty is no. */}}
{{- define "meshcni.holdsPods" -}}
{{- if .Values.ambient.enabled -}}
yes
{{- else if .Release.IsUpgrade -}}
{{- /* By their pods: of an upgrade whose agents never began there is nothing to release. */ -}}
{{- $agents := include "meshcni.selector" . | fromYaml -}}
{{- $holds := false -}}
{{- range dig "items" list (lookup "v1" "Pod" .Release.Namespace "") -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $ours := true -}}
{{- range $key, $value := $agents }}{{ if ne (get $labels $key) $value }}{{ $ours = false }}{{ end }}{{ end -}}
{{- range .spec.containers }}{{ if not (has "--ambient=true" (.args | default list)) }}{{ $ours = false }}{{ end }}{{ end -}}
{{- range dig "status" "containerStatuses" list . }}{{ if and $ours .containerID }}{{ $holds = true }}{{ end }}{{ end -}}
{{- end -}}
{{- if $holds }}yes{{ end -}}
{{- end -}}
{{- end -}}

{{/* Whether the plugin gets pods from the agent, which then has to know them. With ambient.enabled it knows them anyway. Empty is no. */}}
{{- define "meshcni.servesPods" -}}
{{- if not (or .Values.ambient.enabled (has (toString .Values.agent) (list "off" "false"))) }}yes{{ end -}}
{{- end -}}

{{/* The name of the role of deploy/rbac for the mode of repair. */}}
{{- define "meshcni.repairRole" -}}
{{- $mode := .Values.repair.mode -}}
{{- if eq $mode "auto" }}{{ $mode = ternary "auto" "none" (eq (include "meshcni.evicts" .) "yes") }}{{ end -}}
{{ .Values.product }}-repair-{{ ternary "force-delete" $mode (and (eq .Values.repair.mode "delete") .Values.repair.forceDelete) }}
{{- end -}}

{{/* What the mode of repair needs, and nothing more: the rules of the file of that name in deploy/rbac. */}}
{{- define "meshcni.repairRules" -}}
{{- $mode := .Values.repair.mode }}
# The pods of its node. RBAC cannot restrict that to one node; the requests do.
- apiGroups: [""]
  resources: ["pods"]
  {{- if and (eq $mode "delete") .Values.repair.forceDelete }}
  verbs: ["list", "watch", "delete"]
  {{- else }}
  verbs: ["list", "watch"]
  {{- end }}
# What became of them, for kubectl describe.
- apiGroups: [""]
  resources: ["events"]
  verbs: ["create", "patch"]
{{- if include "meshcni.evicts" . }}
# Eviction: disruption budgets have their say.
- apiGroups: [""]
  resources: ["pods/eviction"]
  verbs: ["create"]
{{- if eq $mode "auto" }}
# Whether the policy stays by which the agent may evict pods of its own node only.
- apiGroups: ["admissionregistration.k8s.io"]
  resources: ["validatingadmissionpolicies", "validatingadmissionpolicybindings"]
  resourceNames: [{{ include "meshcni.own" (list . "agent-evictions") | quote }}]
  verbs: ["list", "watch"]
{{- end }}
{{- end }}
{{- if eq $mode "label" }}
# Labels can be set through the status, which leaves the spec out of reach.
- apiGroups: [""]
  resources: ["pods/status"]
  verbs: ["patch"]
{{- end }}
{{- end -}}
