{{/* Whether every node is uninstalled when the release is. Empty is no. */}}
{{- define "meshcni.uninstallsNodes" -}}
{{- if and .Values.uninstall.check .Values.rbac.create (ne (toString .Values.uninstallOnExit) "false") }}yes{{ end -}}
{{- end -}}

{{- define "meshcni.uninstallSelector" -}}
app.kubernetes.io/name: {{ include "meshcni.appName" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: uninstall
{{- end -}}

{{- define "meshcni.uninstallLabels" -}}
{{- include "meshcni.labelsOf" (dict "root" . "component" "uninstall" "more" (dict "sidecar.istio.io/inject" "false" "istio.io/dataplane-mode" "none" "kuma.io/sidecar-injection" "disabled")) -}}
{{- end -}}

{{/* What both kinds of pods have: they start whatever the plugin or the network are like, on a node that is no virtual one. No
priority class, for which some platforms want a quota that is deleted by then. */}}
{{- define "meshcni.uninstallPod" -}}
serviceAccountName: meshcni-uninstall
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
hostNetwork: true
dnsPolicy: Default
nodeSelector:
  kubernetes.io/os: linux
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The taints that the Job's pod tolerates: it must not come onto a node that is down, where it would wait for ever. */}}
{{- define "meshcni.uninstallTolerations" -}}
{{- $all := list -}}
{{- range list "node-role.kubernetes.io/control-plane" "node-role.kubernetes.io/master" "node.kubernetes.io/unschedulable" "node.kubernetes.io/network-unavailable" "CriticalAddonsOnly" -}}
{{- $all = append $all (dict "key" . "operator" "Exists") -}}
{{- end -}}
{{- range .Values.tolerations }}{{- if .key }}{{- $all = append $all . }}{{- end }}{{- end -}}
{{- toYaml $all -}}
{{- end -}}
