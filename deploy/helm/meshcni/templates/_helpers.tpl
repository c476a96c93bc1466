{{/*
The values that hold: profiles/default.yaml, over that the platform's profile, over that what the user has set. null sets nothing.
Use: {{- $v := include "meshcni.values" . | fromYaml }}
*/}}
{{- define "meshcni.values" -}}
{{- $values := .Files.Get "profiles/default.yaml" | fromYaml -}}
{{- with .Values.profile -}}
{{- $profile := $.Files.Get (printf "profiles/%s.yaml" .) | fromYaml -}}
{{- include "meshcni.overlay" (dict "onto" $values "from" $profile) -}}
{{- end -}}
{{- include "meshcni.overlay" (dict "onto" $values "from" .Values) -}}
{{- toYaml $values -}}
{{- end -}}

{{/* Sets what is in .from in .onto, maps key by key. (sprig's merges take false and 0 for unset.) */}}
{{- define "meshcni.overlay" -}}
{{- range $key, $value := .from -}}
{{- if kindIs "invalid" $value -}}
{{- else if and (kindIs "map" $value) (kindIs "map" (get $.onto $key)) -}}
{{- include "meshcni.overlay" (dict "onto" (get $.onto $key) "from" $value) -}}
{{- else -}}
{{- $_ := set $.onto $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The DaemonSet's name, which the plugin knows: it lets its pods through without credentials. */}}
{{- define "meshcni.name" -}}meshcni-node{{- end -}}

{{- define "meshcni.selector" -}}
app.kubernetes.io/name: meshcni
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: node
{{- end -}}

{{/* Labels of all objects. */}}
{{- define "meshcni.labels" -}}
{{ include "meshcni.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The same for a part that is not the agent; use: (dict "root" . "component" "repair"). */}}
{{- define "meshcni.labelsOf" -}}
{{ include "meshcni.labels" .root | replace "app.kubernetes.io/component: node" (printf "app.kubernetes.io/component: %s" .component) }}
{{- end -}}

{{- define "meshcni.image" -}}
{{- with .Values.image -}}
{{- $name := ternary (printf "%s/%s" .registry .repository) .repository (ne .registry "") -}}
{{- if .digest -}}
{{ $name }}@{{ .digest }}
{{- else -}}
{{ $name }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether the repair controller runs, and whether it enters pods' namespaces. Empty is no. */}}
{{- define "meshcni.verifies" -}}
{{- if not (regexMatch "^(0+(\\.0+)?(ns|us|µs|ms|s|m|h))*$|^0$" (toString .Values.repair.verifyInterval)) }}yes{{ end -}}
{{- end -}}
{{- define "meshcni.repairs" -}}
{{- if or (ne .Values.repair.mode "none") (include "meshcni.verifies" .) }}yes{{ end -}}
{{- end -}}
{{- define "meshcni.entersPods" -}}
{{- if or (eq .Values.repair.mode "repair") (include "meshcni.verifies" .) }}yes{{ end -}}
{{- end -}}

{{/* Whether the dialect's pods are decided on with their Namespace object. */}}
{{- define "meshcni.readsNamespaces" -}}
{{- if eq .Values.dialect "linkerd" }}yes{{ end -}}
{{- end -}}

{{/* The capabilities that a mode needs, a YAML list. Entering pods' namespaces and running the host's iptables there needs
SYS_ADMIN (setns, mount), SYS_PTRACE (/proc/<pid>/ns of others), SYS_CHROOT and NET_ADMIN; all else works as a plain root. */}}
{{- define "meshcni.capabilities" -}}
{{- $add := list -}}
{{- if include "meshcni.entersPods" . -}}
{{- $add = list "NET_ADMIN" "SYS_ADMIN" "SYS_CHROOT" "SYS_PTRACE" -}}
{{- end -}}
{{- toYaml (concat $add .Values.extraCapabilities | uniq) -}}
{{- end -}}

{{- define "meshcni.appArmor" -}}
{{- if .Values.appArmorProfile -}}
{{- toYaml .Values.appArmorProfile -}}
{{- else -}}
type: {{ ternary "Unconfined" "RuntimeDefault" (eq (include "meshcni.entersPods" .) "yes") }}
{{- end -}}
{{- end -}}

{{/* A seccomp or AppArmor profile in the one-word form that annotations and OpenShift have. */}}
{{- define "meshcni.profileName" -}}
{{- if eq .type "Localhost" }}localhost/{{ .localhostProfile }}
{{- else }}{{ get (dict "RuntimeDefault" "runtime/default" "Unconfined" "unconfined") .type }}
{{- end -}}
{{- end -}}

{{/* Makes a text mean itself in args and env, where $(NAME) is a reference. */}}
{{- define "meshcni.literal" -}}{{- toString . | replace "$" "$$" -}}{{- end -}}

{{/* host:port to listen on, an IPv6 address in brackets. */}}
{{- define "meshcni.listen" -}}
{{- if contains ":" .host -}}[{{ .host }}]{{- else -}}{{ .host }}{{- end -}}:{{ .port | int }}
{{- end -}}

{{- define "meshcni.serviceAccountName" -}}{{ .Values.serviceAccount.name }}{{- end -}}

{{- define "meshcni.networkAttachment.file" -}}{{ .cni.confName | default "meshcni.conf" }}{{- end -}}
