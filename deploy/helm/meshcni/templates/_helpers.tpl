{{/*
Makes .Values what holds: profiles/default.yaml, over that the platform's profile, over that what the user has set; null sets
nothing. Each template begins with it; only the first of a release does the work.
*/}}
{{- define "meshcni.init" -}}
{{- if not (hasKey .Values "_holds") -}}
{{- $values := .Files.Get "profiles/default.yaml" | fromYaml -}}
{{- with .Values.profile -}}
{{- $profile := $.Files.Get (printf "profiles/%s.yaml" .) | fromYaml -}}
{{- include "meshcni.overlay" (dict "onto" $values "from" $profile) -}}
{{- end -}}
{{- $known := $values.cni.confDir -}}
{{- include "meshcni.overlay" (dict "onto" $values "from" .Values) -}}
{{- $_ := set .Values "_ownConfDir" (ne $values.cni.confDir $known) -}}
{{- if not $values.cni.enabled }}{{- $_ := set $values.networkAttachmentDefinition "enabled" false }}{{- end -}}
{{- if not $values.cni.runDir }}{{- $_ := set $values.cni "runDir" (printf "/var/run/%s" (include "meshcni.type" .)) }}{{- end -}}
{{- if not $values.taint.key }}{{- $_ := set $values.taint "key" (printf "%sagent-not-ready" (include "meshcni.prefix" .)) }}{{- end -}}
{{- range $key, $value := $values -}}
{{- $_ := set $.Values $key $value -}}
{{- end -}}
{{- with .Values.global }}{{- with .imageRegistry }}
{{- $_ := set $.Values "image" (merge (dict "registry" .) $.Values.image) -}}
{{- end }}{{- end -}}
{{- $_ := set .Values "_holds" true -}}
{{- end -}}
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

{{/* The programs' Identity, and what follows in it from the product's name: the agent's program, with which the DaemonSet's name begins, since
the plugin lets such pods through without credentials; the plugin's type; what begins labels, metrics and variables. */}}
{{- define "meshcni.agent" -}}{{ .Values.identity.agent | default (printf "%s-node" .Values.product) }}{{- end -}}
{{- define "meshcni.type" -}}{{ .Values.identity.plugin | default (ternary "meshcni" (printf "%s-cni" .Values.product) (eq .Values.product "meshcni")) }}{{- end -}}
{{- define "meshcni.prefix" -}}{{ .Values.identity.labelPrefix | default (printf "%s.io/" .Values.product) }}{{- end -}}
{{- define "meshcni.metricPrefix" -}}{{ .Values.identity.metricPrefix | default (printf "%s_" (replace "-" "_" .Values.product)) }}{{- end -}}
{{- define "meshcni.envPrefix" -}}{{ .Values.identity.envPrefix | default (printf "%s_" (.Values.product | upper | replace "-" "_")) }}{{- end -}}

{{/* All of it, as the agent compares it with its own. */}}
{{- define "meshcni.identity" -}}
Name={{ .Values.product }},Plugin={{ include "meshcni.type" . }},Agent={{ include "meshcni.agent" . }},LabelPrefix={{ include "meshcni.prefix" . }},MetricPrefix={{ include "meshcni.metricPrefix" . }},EnvPrefix={{ include "meshcni.envPrefix" . }}
{{- end -}}

{{/* A file of the directory files, with the product's metrics and programs. Use: (list . NAME) */}}
{{- define "meshcni.monitoring" -}}
{{- with first . -}}
{{- $text := .Files.Get (printf "files/%s" (last $)) | replace "- name: meshcni-" (printf "- name: %s-" .Values.product) | replace "meshcni_" (include "meshcni.metricPrefix" .) | replace "meshcni-node" (include "meshcni.agent" .) | replace "Meshcni" (.Values.product | replace "-" "_" | camelcase) -}}
{{- $text = $text | replace "\"meshcni\"" (quote .Values.product) | replace " of meshcni," (printf " of %s," .Values.product) -}}
{{- regexReplaceAll "meshcni(-repair|-taint)" $text (printf "%s${1}" .Values.product) -}}
{{- end -}}
{{- end -}}

{{- define "meshcni.name" -}}{{ .Values.fullnameOverride | default (include "meshcni.agent" .) }}{{- end -}}

{{- define "meshcni.appName" -}}{{ .Values.nameOverride | default .Values.product }}{{- end -}}

{{- define "meshcni.selector" -}}
app.kubernetes.io/name: {{ include "meshcni.appName" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: node
{{- end -}}

{{/* Several maps as one, in YAML; of one key the last counts. Use: (list map map) */}}
{{- define "meshcni.merged" -}}
{{- $all := dict -}}
{{- range . }}{{- range $key, $value := . }}{{- $_ := set $all $key $value }}{{- end }}{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* Labels of all objects of a component. The chart's own win over the user's: selectors rely on them. Use:
(dict "root" . "component" "repair") */}}
{{- define "meshcni.labelsOf" -}}
{{- $own := include "meshcni.selector" .root | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/component" .component -}}
{{- $_ := set $own "app.kubernetes.io/version" .root.Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") -}}
{{- include "meshcni.merged" (list .root.Values.commonLabels (.more | default dict) $own) -}}
{{- end -}}

{{- define "meshcni.labels" -}}
{{- include "meshcni.labelsOf" (dict "root" . "component" "node") -}}
{{- end -}}

{{/* Labels and annotations of the agent's pods. The agent is not of the mesh, whatever is said of its namespace; some injectors go
by labels, some by annotations. */}}
{{- define "meshcni.podLabels" -}}
{{- $own := dict
      "app.kubernetes.io/version" .Chart.AppVersion
      "sidecar.istio.io/inject" "false"
      "istio.io/dataplane-mode" "none"
      "kuma.io/sidecar-injection" "disabled" -}}
{{- include "meshcni.merged" (list $own .Values.commonLabels .Values.podLabels (include "meshcni.selector" . | fromYaml)) -}}
{{- end -}}
{{- define "meshcni.podAnnotations" -}}
{{- $own := dict
      (printf "%ssettings" (include "meshcni.prefix" .)) (include "meshcni.config" .)
      (printf "%splugin-config" (include "meshcni.prefix" .)) (.Values.pluginConfig | default "")
      "kubectl.kubernetes.io/default-container" (include "meshcni.name" .)
      "sidecar.istio.io/inject" "false"
      "linkerd.io/inject" "disabled"
      "consul.hashicorp.com/connect-inject" "false"
      "cluster-autoscaler.kubernetes.io/enable-ds-eviction" "false" -}}
{{- with .Values.metrics -}}
{{- $own = merge $own (dict "prometheus.io/scrape" (toString .scrapeAnnotations) "prometheus.io/port" (.port | int | toString) "prometheus.io/path" "/metrics") -}}
{{- end -}}
{{- with include "meshcni.appArmor" . | fromYaml }}{{- if not (include "meshcni.appArmorIsField" $) -}}
{{- $_ := set $own (printf "container.apparmor.security.beta.kubernetes.io/%s" (include "meshcni.name" $)) (include "meshcni.profileName" .) -}}
{{- end }}{{- end -}}
{{- include "meshcni.merged" (list $own .Values.podAnnotations) -}}
{{- end -}}

{{/* Whether a name begins with a registry's host, as the container runtimes see it. Empty is no. */}}
{{- define "meshcni.hasHost" -}}
{{- if regexMatch "^(localhost|[^/]*[.:][^/]*)/" . }}yes{{ end -}}
{{- end -}}

{{/* Where the image is. A release's chart has its registry, and its image's digest, in annotations of the chart. So values are
the user's alone: a registry is that of the same image, so the digest holds there too; but a tag is asked for as it is, and so is
what was imported on the nodes, which is known there by its tag only. */}}
{{- define "meshcni.image" -}}
{{- $release := eq .Values.product "meshcni" | ternary (.Chart.Annotations | default dict) dict -}}
{{- with .Values.image -}}
{{- $name := .repository -}}
{{- $registry := .registry -}}
{{- if not (or $registry (include "meshcni.hasHost" $name)) }}{{ $registry = index $release "meshcni.io/image-registry" }}{{ end -}}
{{- with $registry }}{{ $name = printf "%s/%s" . $name }}{{ end -}}
{{- $digest := .digest -}}
{{- if not (or $digest .tag (hasPrefix "localhost/" $name)) }}{{ $digest = index $release "meshcni.io/image-digest" }}{{ end -}}
{{- if $digest -}}
{{ $name }}@{{ $digest }}
{{- else -}}
{{ $name }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether the repair controller runs, to act, verify or detect, and whether it enters pods' namespaces. Empty is no. */}}
{{- define "meshcni.verifies" -}}
{{- if not (regexMatch "^(0+(\\.0+)?(ns|us|µs|ms|s|m|h))*$|^0$" (toString .Values.repair.verifyInterval)) }}yes{{ end -}}
{{- end -}}
{{- define "meshcni.repairs" -}}
{{- if or (ne .Values.repair.mode "none") (include "meshcni.verifies" .) .Values.detect.enabled }}yes{{ end -}}
{{- end -}}
{{- define "meshcni.entersPods" -}}
{{- if or (eq .Values.repair.mode "repair") (include "meshcni.verifies" .) .Values.ambient.enabled }}yes{{ end -}}
{{- end -}}

{{/* The dialects, a YAML list: those of the values, with ambient first where it is on. */}}
{{- define "meshcni.dialects" -}}
{{- $all := list -}}
{{- range kindIs "slice" .Values.dialect | ternary .Values.dialect (list .Values.dialect) }}{{ $all = append $all . }}{{ end -}}
{{- if and .Values.ambient.enabled (not (has "ambient" $all)) }}{{ $all = prepend $all "ambient" }}{{ end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* The meshes whose proxies are in their pods, a YAML list. */}}
{{- define "meshcni.sidecars" -}}
{{- $all := list -}}
{{- range include "meshcni.dialects" . | fromYamlArray }}{{ if ne . "ambient" }}{{ $all = append $all . }}{{ end }}{{ end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* Whether pods are decided on with their Namespace object, by the plugin and by repair. Repair needs it where it writes the rules
of pods of Linkerd, and where ambient could have the pods of a sidecar; it leaves those of Istio's alone without being told. */}}
{{- define "meshcni.readsNamespaces" -}}
{{- $all := include "meshcni.dialects" . | fromYamlArray -}}
{{- if or (has "linkerd" $all) (has "ambient" $all) .Values.excludeNamespaceSelector .Values.rbac.namespaces }}yes{{ end -}}
{{- end -}}
{{- define "meshcni.repairReadsNamespaces" -}}
{{- $all := include "meshcni.dialects" . | fromYamlArray -}}
{{- $shared := and (has "ambient" $all) (without (include "meshcni.sidecars" . | fromYamlArray) "istio") (include "meshcni.repairs" .) -}}
{{- if or $shared (and (has "linkerd" $all) (include "meshcni.entersPods" .)) (and (or .Values.excludeNamespaceSelector .Values.rbac.namespaces) (include "meshcni.repairs" .)) }}yes{{ end -}}
{{- end -}}

{{/* The capabilities that a mode needs, a YAML list. Most of the agent's work needs none, but directories that are not root's
are closed to a root without DAC_OVERRIDE. Entering pods' namespaces needs SYS_ADMIN (setns, mounts of its own), SYS_PTRACE
(/proc/<pid>/ns of others) and NET_ADMIN (rules); the host's iptables also SYS_CHROOT, and iptables-legacy, which opens a raw
socket, NET_RAW. For pods of a node's proxy SYS_CHROOT lets the agent keep their namespaces in the host's mounts, which outlive its
container; a mount that propagates there by itself would take a privileged one. */}}
{{- define "meshcni.capabilities" -}}
{{- $add := ternary (list "DAC_OVERRIDE") list $.Values.dacOverride -}}
{{- if include "meshcni.entersPods" . -}}
{{- $add = concat $add (list "NET_ADMIN" "SYS_ADMIN" "SYS_PTRACE") -}}
{{- if or .Values.ambient.enabled (include "meshcni.usesHostPrograms" .) }}{{- $add = append $add "SYS_CHROOT" }}{{- end -}}
{{- if has $.Values.backend (list "auto" "iptables" "iptables-legacy") }}{{- $add = append $add "NET_RAW" }}{{- end -}}
{{- end -}}
{{- if eq (include "meshcni.runtimeHook" .) "capture" }}{{- $add = concat $add (list "NET_ADMIN" "SYS_ADMIN") }}{{- end -}}
{{- toYaml (concat $add $.Values.extraCapabilities | uniq | sortAlpha) -}}
{{- end -}}

{{/* What is done at the container runtime's hook. An unquoted off is false in YAML. */}}
{{- define "meshcni.runtimeHook" -}}
{{ ternary "off" .Values.runtimeHook.mode (eq (toString .Values.runtimeHook.mode) "false") }}
{{- end -}}

{{/* Where the runtime looks for plugins that it starts itself; empty where the node has no such directory, or the plugin is not ours. */}}
{{- define "meshcni.hookDir" -}}
{{- if eq .Values.product "meshcni" }}{{ .Values.runtimeHook.pluginDir }}{{ end -}}
{{- end -}}

{{/* What the plugin does there: off takes it back. */}}
{{- define "meshcni.preinstall" -}}
{{- $mode := include "meshcni.runtimeHook" . -}}
{{- if or (not (include "meshcni.hookDir" .)) (eq (toString .Values.runtimeHook.preinstall) "false") (and (eq (toString .Values.runtimeHook.preinstall) "auto") (eq $mode "off")) -}}
off
{{- else -}}
{{ ternary "gate" "capture" (eq $mode "gate") }}
{{- end -}}
{{- end -}}

{{/* Whether the agent runs the host's iptables. Empty is no. */}}
{{- define "meshcni.usesHostPrograms" -}}
{{- if and (include "meshcni.entersPods" .) (ne $.Values.backend "nftables") }}yes{{ end -}}
{{- end -}}

{{/* Empty where the runtime's own choice is right: asked for by name, the runtime's default makes a kubelet refuse the pod on a
node without AppArmor. */}}
{{- define "meshcni.appArmor" -}}
{{- if .Values.appArmorProfile -}}
{{- toYaml .Values.appArmorProfile -}}
{{- else if include "meshcni.entersPods" . -}}
type: Unconfined
{{- end -}}
{{- end -}}

{{/* Since 1.30 AppArmor is a field; before, an annotation. Empty is no. */}}
{{- define "meshcni.appArmorIsField" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}yes{{ end -}}
{{- end -}}

{{/* A seccomp or AppArmor profile in the one-word form that annotations and OpenShift have. */}}
{{- define "meshcni.profileName" -}}
{{- if eq .type "Localhost" }}localhost/{{ .localhostProfile }}
{{- else }}{{ get (dict "RuntimeDefault" "runtime/default" "Unconfined" "unconfined") .type }}
{{- end -}}
{{- end -}}

{{/* The plugin directories of the runtime, a YAML list that is always of the same length: an empty one is not used. */}}
{{- define "meshcni.binDirs" -}}
{{- toYaml (slice (concat .Values.cni.binDirs (list "" "" "" "")) 0 4) -}}
{{- end -}}

{{/* The affinity with all that it may have. */}}
{{- define "meshcni.affinity" -}}
{{- $all := dict -}}
{{- range $kind, $terms := .Values.affinity | default dict -}}
{{- with $terms -}}
{{- $_ := set $all $kind (include "meshcni.withNulls" (list . "requiredDuringSchedulingIgnoredDuringExecution" "preferredDuringSchedulingIgnoredDuringExecution") | fromYaml) -}}
{{- end -}}
{{- end -}}
{{- include "meshcni.withNulls" (list $all "nodeAffinity" "podAffinity" "podAntiAffinity") -}}
{{- end -}}

{{/* A map with null for the keys that it does not have, which takes them out of an object that has them. Use: (list MAP KEY…) */}}
{{- define "meshcni.withNulls" -}}
{{- $all := dict -}}
{{- range rest . }}{{ $_ := set $all . nil }}{{ end -}}
{{- range $key, $value := first . }}{{ $_ := set $all $key $value }}{{ end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* How the DaemonSet rolls, with both of its numbers. */}}
{{- define "meshcni.rollingUpdate" -}}
{{- $own := .Values.updateStrategy.rollingUpdate | default (dict "maxSurge" "10%") -}}
maxSurge: {{ dig "maxSurge" 0 $own | toJson }}
maxUnavailable: {{ dig "maxUnavailable" (ternary 1 0 (has (dig "maxSurge" 0 $own | toString) (list "0" "0%"))) $own | toJson }}
{{- end -}}

{{/* The name of an object of this release: meshcni-NAME, with what fullnameOverride has after the agent's name, so that a second
release has its own. Use: (include "meshcni.own" (list . "plugin")) */}}
{{- define "meshcni.own" -}}
{{ (first .).Values.product }}-{{ index . 1 }}{{ include "meshcni.name" (first .) | trimPrefix (include "meshcni.agent" (first .)) }}
{{- end -}}

{{/* Makes a value mean itself in args and env, where $(NAME) is a reference; a whole number has no exponent. */}}
{{- define "meshcni.literal" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- printf "%.0f" . -}}
{{- else -}}
{{- toString . | replace "$" "$$" -}}
{{- end -}}
{{- end -}}

{{/* Where health is served: on the host's network not to others than the kubelet, unless it is said. */}}
{{- define "meshcni.healthHost" -}}
{{- if kindIs "invalid" .Values.health.host }}{{ ternary "127.0.0.1" "" .Values.hostNetwork }}{{ else }}{{ .Values.health.host }}{{ end -}}
{{- end -}}

{{/* Where the startup probe asks the agent, in a directory of the pod's own. */}}
{{- define "meshcni.startSocket" -}}/var/run/meshcni-agent/start.sock{{- end -}}

{{/* Whether something is to scrape metrics from outside. Empty is no. */}}
{{- define "meshcni.scraped" -}}
{{- with .Values.metrics }}{{ if and .enabled (or .service.enabled .serviceMonitor.enabled .podMonitor.enabled .scrapeAnnotations) }}yes{{ end }}{{ end -}}
{{- end -}}

{{/* Where metrics are served: on the host's network for nobody else, unless it is said, or something is to scrape them; then at
the one address at which it does. */}}
{{- define "meshcni.metricsHost" -}}
{{- if not (kindIs "invalid" .Values.metrics.host) }}{{ .Values.metrics.host }}
{{- else if not .Values.hostNetwork }}
{{- else if include "meshcni.scraped" . }}$(POD_IP)
{{- else }}127.0.0.1
{{- end -}}
{{- end -}}

{{/* host:port to listen on, an IPv6 address in brackets, and one that is not known yet too. */}}
{{- define "meshcni.listen" -}}
{{- if or (contains ":" .host) (contains "$" .host) -}}[{{ .host }}]{{- else -}}{{ .host }}{{- end -}}:{{ .port | int }}
{{- end -}}

{{- define "meshcni.serviceAccountName" -}}{{ .Values.serviceAccount.name | default (include "meshcni.own" (list . "node")) }}{{- end -}}
{{- define "meshcni.pluginAccountName" -}}{{ .Values.pluginServiceAccount.name | default (include "meshcni.own" (list . "plugin")) }}{{- end -}}

{{- define "meshcni.networkAttachment.file" -}}{{ .cni.confName | default (printf "%s.conf" (include "meshcni.type" (dict "Values" .))) }}{{- end -}}
