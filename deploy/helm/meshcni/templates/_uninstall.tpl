{{/* Whether every node is uninstalled when the release is. Empty is no. */}}
{{- define "meshcni.uninstallsNodes" -}}
{{- if and .Values.uninstall.check .Values.rbac.create (ne (toString .Values.uninstallOnExit) "false") }}yes{{ end -}}
{{- end -}}

{{/* The values as YAML, as if ambient mode were on: an upgrade may have just switched it off, and left pods that only the uninstall can release. */}}
{{- define "meshcni.asHeld" -}}
{{- toYaml (dict "Values" (mergeOverwrite (deepCopy .Values) (dict "ambient" (dict "enabled" true)))) -}}
{{- end -}}

{{/* The capabilities with which a node is uninstalled, a YAML list: the agent's where pods are to be entered, to take them out of
the care of the node's proxy. */}}
{{- define "meshcni.uninstallCapabilities" -}}
{{- if include "meshcni.holdsPods" . -}}
{{- include "meshcni.capabilities" (include "meshcni.asHeld" . | fromYaml) -}}
{{- else -}}
{{- toYaml (concat (ternary (list "DAC_OVERRIDE") list .Values.dacOverride) .Values.extraCapabilities | uniq | sortAlpha) -}}
{{- end -}}
{{- end -}}

{{/* Use of this and the next: (dict "root" . "component" "uninstall") */}}
{{- define "meshcni.uninstallSelector" -}}
app.kubernetes.io/name: {{ include "meshcni.appName" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "meshcni.uninstallLabels" -}}
{{- include "meshcni.labelsOf" (dict "root" .root "component" .component "more" (dict "sidecar.istio.io/inject" "false" "istio.io/dataplane-mode" "none" "kuma.io/sidecar-injection" "disabled")) -}}
{{- end -}}

{{/* What both kinds of pods have: they start whatever the plugin or the network are like. No priority class, for which some
platforms want a quota that is deleted by then. */}}
{{- define "meshcni.uninstallPod" -}}
serviceAccountName: {{ include "meshcni.own" (list . "uninstall") }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
hostNetwork: true
dnsPolicy: Default
{{- end -}}

{{/* All Linux nodes but those that affinity keeps off; of a release beside another (fullnameOverride) only those of its nodeSelector. */}}
{{- define "meshcni.uninstallNodes" -}}
{{- $own := ternary dict .Values.nodeSelector (include "meshcni.name" . | eq (include "meshcni.agent" .)) }}
nodeSelector:
  {{- toYaml (merge (dict) $own (dict "kubernetes.io/os" "linux")) | nindent 2 }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Where the Job's pod goes: best to a node that a kubelet has registered. On one that is down it would wait for ever, so it
leaves at once when that is known. */}}
{{- define "meshcni.uninstallJobPlace" -}}
{{- $known := dict "matchExpressions" (list (dict "key" "kubernetes.io/arch" "operator" "Exists") (dict "key" "kubernetes.io/hostname" "operator" "Exists")) -}}
{{- $prefers := dict "nodeAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "preference" $known))) -}}
nodeSelector:
  kubernetes.io/os: linux
affinity:
  {{- toYaml (mergeOverwrite (deepCopy (.Values.affinity | default dict)) $prefers) | nindent 2 }}
{{- $tolerations := list -}}
{{- range list "node-role.kubernetes.io/control-plane" "node-role.kubernetes.io/master" "node.kubernetes.io/unschedulable" "node.kubernetes.io/network-unavailable" "CriticalAddonsOnly" -}}
{{- $tolerations = append $tolerations (dict "key" . "operator" "Exists") -}}
{{- end -}}
{{- range list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" -}}
{{- $tolerations = append $tolerations (dict "key" . "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 0) -}}
{{- end -}}
{{- range .Values.tolerations }}{{- if .key }}{{- $tolerations = append $tolerations . }}{{- end }}{{- end }}
tolerations:
  {{- toYaml $tolerations | nindent 2 }}
{{- end -}}

{{/* The directory that an uninstall mounts: the configuration's, or what that is in if it is none of a platform's, since a misspelt one must
not be made. */}}
{{- define "meshcni.uninstallConfDir" -}}
{{- ternary (dir .Values.cni.confDir) .Values.cni.confDir .Values._ownConfDir -}}
{{- end -}}
