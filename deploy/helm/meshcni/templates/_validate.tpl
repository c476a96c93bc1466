{{/* What no schema says: what cannot work, alone or together. All of them at once. */}}
{{- define "meshcni.validate" -}}
{{- $bad := list -}}
{{- $image := include "meshcni.image" . -}}
{{- if not (include "meshcni.hasHost" $image) -}}
{{- with $.Values.image.registry -}}
{{- $bad = append $bad (printf "image.registry %q is no registry's host: without a dot or a port it is a name at the container runtime's default registry, where anybody may own it" .) -}}
{{- else -}}
{{- $bad = append $bad (printf "image.registry is not set, and this chart, which is of no release, has no default: say image.registry=HOST for the registry that you pushed the image to, or image.registry=localhost if each node has it imported as localhost/%s" $image) -}}
{{- end -}}
{{- end -}}
{{- if and (eq (toString $.Values.cni.ownFile) "true") (not $.Values.cni.chained) }}{{- $bad = append $bad "cni.ownFile needs cni.chained: a list of our own holds the network's plugins too" }}{{- end -}}
{{- with $.Values.cni.confName -}}
{{- if and (eq (toString $.Values.cni.ownFile) "auto") $.Values.cni.chained (eq . (printf "00-%s.conflist" (include "meshcni.type" $))) }}{{- $bad = append $bad (printf "cni.confName %q: is the name of the list that cni.ownFile auto may keep, and cannot be the network's" .) }}
{{- else if and (eq (toString $.Values.cni.ownFile) "true") (not (hasSuffix ".conflist" .)) }}{{- $bad = append $bad (printf "cni.confName %q: with cni.ownFile it must end in .conflist" .) }}{{- end -}}
{{- if and (not $.Values.cni.chained) (hasSuffix ".conflist" .) }}{{- $bad = append $bad (printf "cni.confName %q: without cni.chained it must end in .conf or .json" .) }}{{- end -}}
{{- end -}}
{{- with $.Values.fullnameOverride -}}
{{- $agent := include "meshcni.agent" $ -}}
{{- if not (or (eq . $agent) (hasPrefix (printf "%s-" $agent) .)) }}{{- $bad = append $bad (printf "fullnameOverride %q must be %[2]s or begin with %[2]s-: by that the plugin knows the agent's own pods, and lets them start" . $agent) }}{{- end -}}
{{- end -}}
{{- if not $.Values.cni.enabled -}}
{{- $mode := include "meshcni.runtimeHook" $ -}}
{{- if not (or (eq $mode "capture") (and (eq $mode "auto") (include "meshcni.entersPods" $))) }}{{- $bad = append $bad (printf "cni.enabled false needs runtimeHook.mode capture: with %s nothing would capture pods" $mode) }}{{- end -}}
{{- if has (toString $.Values.agent) (list "off" "false") }}{{- $bad = append $bad "cni.enabled false does not go with agent off: the agent has to know its node's pods" }}{{- end -}}
{{- end -}}
{{- if and (eq (toString $.Values.runtimeHook.preinstall) "true") (not (include "meshcni.hookDir" $)) }}{{- $bad = append $bad (ternary "runtimeHook.preinstall true needs runtimeHook.pluginDir, which the profile leaves empty" "runtimeHook.preinstall true: only the plugin of product meshcni can be started by the runtime" (eq $.Values.product "meshcni")) }}{{- end -}}
{{- if and $.Values.networkAttachmentDefinition.enabled $.Values.cni.chained }}{{- $bad = append $bad "networkAttachmentDefinition.enabled needs cni.chained false: Multus would add the plugin to pods that the chain has added it to already" }}{{- end -}}
{{- if and $.Values.metrics.enabled (eq ($.Values.metrics.port | int) ($.Values.health.port | int)) }}{{- $bad = append $bad "metrics.port and health.port must differ" }}{{- end -}}
{{- if not $.Values.metrics.enabled -}}
{{- range $name := list "service" "serviceMonitor" "podMonitor" "scrapeAnnotations" -}}
{{- $on := index $.Values.metrics $name -}}
{{- if kindIs "map" $on }}{{- $on = $on.enabled }}{{- end -}}
{{- if $on }}{{- $bad = append $bad (printf "metrics.%s needs metrics.enabled" $name) }}{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $.Values.metrics.serviceMonitor.enabled $.Values.metrics.podMonitor.enabled }}{{- $bad = append $bad "metrics.serviceMonitor and metrics.podMonitor together would count everything twice" }}{{- end -}}
{{- if eq .Values.product "meshcni" -}}
{{- range include "meshcni.dialects" . | fromYamlArray }}{{ if not (has . (list "istio" "linkerd" "kuma" "consul" "ambient")) }}{{- $bad = append $bad (printf "dialect %q: known is istio, linkerd, kuma, consul, ambient" .) }}{{ end }}{{ end -}}
{{- end -}}
{{- if and (has "ambient" (include "meshcni.dialects" . | fromYamlArray)) (not (get ($.Values.ambient | default dict) "enabled")) }}{{- $bad = append $bad "dialect ambient needs ambient.enabled: its pods wait for an agent that hands them to the node's proxy" }}{{- end -}}
{{- $acts := or (not (has $.Values.repair.mode (list "none" "auto"))) (include "meshcni.verifies" .) -}}
{{- if and $acts (eq (include "meshcni.sidecars" . | fromYamlArray | join ",") "consul") (not (and $.Values.repair.initContainer $.Values.repair.exitCodes)) }}{{- $bad = append $bad "repair.initContainer and repair.exitCodes must be set for consul, which has no container of its own that checks redirection: repair criteria: no init container to look at" }}{{- end -}}
{{- if and $.Values.ambient.enabled (has (toString $.Values.agent) (list "off" "false")) }}{{- $bad = append $bad "agent off does not go with ambient.enabled, whose pods only the node's agent can capture" }}{{- end -}}
{{- $seconds := include "meshcni.tokenSeconds" . | int -}}
{{- if or (lt $seconds 600) (gt $seconds 86400) (eq $seconds 3607) }}{{- $bad = append $bad (printf "tokenLifetime %s: it must be between 10m and 24h, and not 3607s, which API servers extend to a year" $.Values.tokenLifetime) }}{{- end -}}
{{- if eq (include "meshcni.pluginAccountName" $) (include "meshcni.serviceAccountName" .) }}{{- $bad = append $bad "pluginServiceAccount.name and serviceAccount.name must differ: the plugin needs less than the agent" }}{{- end -}}
{{- /* And what the agent itself would refuse: it is said here, before anything is replaced. */ -}}
{{- with include "meshcni.wrong" (list $ "add-deadline" .Values.addDeadline) }}{{- $bad = append $bad (printf "addDeadline %s: %s" $.Values.addDeadline .) }}{{- end -}}
{{- range $key, $value := dict "ambient.verifyInterval" .Values.ambient.verifyInterval "repair.verifyInterval" .Values.repair.verifyInterval -}}
{{- $every := include "meshcni.milliseconds" $value | float64 -}}
{{- if and (lt $every 1000.0) (or (gt $every 0.0) (hasPrefix "ambient" $key)) }}{{- $bad = append $bad (printf "%s %s: it must be 1s at least, each time looks at every pod of the node" $key $value) }}{{- end -}}
{{- end -}}
{{- range $key, $value := dict "excludeNamespaceSelector" .Values.excludeNamespaceSelector "repair.labelSelector" .Values.repair.labelSelector -}}
{{- if and $value (not (regexMatch (include "meshcni.selectorPattern" $) $value)) }}{{- $bad = append $bad (printf "%s %q: no label selector, such as mesh=off or team in (a,b),!legacy" $key $value) }}{{- end -}}
{{- end -}}
{{- with .Values.repair.fieldSelector -}}
{{- if not (regexMatch "^(metadata\\.(name|namespace)|spec\\.(nodeName|restartPolicy|schedulerName|serviceAccountName|hostNetwork)|status\\.(phase|podIP|nominatedNodeName))(=|==|!=)[^,=]*(,(metadata\\.(name|namespace)|spec\\.(nodeName|restartPolicy|schedulerName|serviceAccountName|hostNetwork)|status\\.(phase|podIP|nominatedNodeName))(=|==|!=)[^,=]*)*$" .) }}{{- $bad = append $bad (printf "repair.fieldSelector %q: no field selector of pods, such as metadata.namespace!=dev" .) }}{{- end -}}
{{- end -}}
{{- with .Values.pluginConfig }}{{- $bad = concat $bad (include "meshcni.wrongEntry" (list $ "pluginConfig" .) | fromJsonArray) }}{{ end -}}
{{- $bad = concat $bad (include "meshcni.wrongExtras" . | fromJsonArray) -}}
{{- if eq .Values.updateStrategy.type "RollingUpdate" -}}
{{- $roll := include "meshcni.rollingUpdate" . | fromYaml -}}
{{- $none := list "0" "0%" "00%" "000%" -}}
{{- $surge := not (has (toString $roll.maxSurge) $none) -}}
{{- $unavailable := not (has (toString $roll.maxUnavailable) $none) -}}
{{- if not (or $surge $unavailable) }}{{- $bad = append $bad "updateStrategy.rollingUpdate: maxSurge and maxUnavailable are both 0, so no agent could be replaced" }}{{- end -}}
{{- if and $surge $unavailable }}{{- $bad = append $bad "updateStrategy.rollingUpdate: one of maxSurge and maxUnavailable must be 0; Kubernetes refuses both" }}{{- end -}}
{{- end -}}
{{- with dig "limits" "memory" "" .Values.resources -}}
{{- $least := 64 -}}
{{- if lt (include "meshcni.mebibytes" . | float64) (float64 $least) }}{{- $bad = append $bad (printf "resources.limits.memory %v: the agent needs %dMi at least" . $least) }}{{- end -}}
{{- end -}}
{{- if $bad }}{{- fail (printf "\n\nthese values cannot work:\n  - %s\n" (join "\n  - " $bad)) }}{{- end -}}
{{- end -}}

{{/* A duration as Go writes it, in milliseconds. */}}
{{- define "meshcni.milliseconds" -}}
{{- $all := 0.0 -}}
{{- $units := dict "ns" 0.000001 "us" 0.001 "µs" 0.001 "ms" 1.0 "s" 1000.0 "m" 60000.0 "h" 3600000.0 -}}
{{- range regexFindAll "[0-9]+(\\.[0-9]+)?(ns|us|µs|ms|s|m|h)" (toString .) -1 -}}
{{- $unit := regexFind "[^0-9.]+$" . -}}
{{- $all = addf $all (mulf (trimSuffix $unit . | float64) (get $units $unit)) -}}
{{- end -}}
{{- $all -}}
{{- end -}}

{{/* A quantity of memory as Kubernetes writes it, in MiB; what is no quantity is enough, and the API server refuses it. */}}
{{- define "meshcni.mebibytes" -}}
{{- $text := include "meshcni.literal" . -}}
{{- $units := dict "" 1.0 "m" 0.001 "k" 1000.0 "M" 1000000.0 "G" 1000000000.0 "T" 1000000000000.0 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- if hasKey $units $unit -}}
{{- divf (mulf (trimSuffix $unit $text | float64) (get $units $unit)) 1048576.0 -}}
{{- else -}}
1000000
{{- end -}}
{{- end -}}

{{/* What a label selector is, as kubectl's --selector takes it: requirements with commas between. */}}
{{- define "meshcni.selectorPattern" -}}
{{- $value := "([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?" -}}
{{- $key := "([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?" -}}
{{- $one := printf "\\s*(!\\s*%[1]s|%[1]s|%[1]s\\s*(=|==|!=)\\s*%[2]s|%[1]s\\s+(in|notin)\\s*\\(\\s*%[2]s(\\s*,\\s*%[2]s)*\\s*\\)|%[1]s\\s*[<>]\\s*-?[0-9]+)\\s*" $key $value -}}
^{{ $one }}(,{{ $one }})*$
{{- end -}}

{{/* The flags of "meshcni-node run", as it has them; a test compares. */}}
{{- define "meshcni.flags" -}}
cni-bin-dir cni-conf-dir cni-cache-dir run-dir bin-source-dir alone chained own-file cni-conf-name service-account-dir plugin-service-account token-lifetime kubernetes-service-host kubernetes-service-port kubernetes-service-protocol exclude-namespaces exclude-namespace-selector dialect agent backend log-level pod-namespace add-deadline uncaptured-family ambient-dns-capture ambient-ipv6 ambient-enablement-selectors ambient-probe-ipv4 ambient-probe-ipv6 ambient-system-namespace refuse-proxy-uid refuse-net-raw allow-sandboxed sandboxed-classes write-status ready-without-agent plugin-config runtime-hook nri-socket nri-plugin-dir preinstall detect repair node-name ambient zds-socket ambient-verify-interval ambient-drain-timeout ambient-drain-minimum ready-needs-proxy config config-id identity metrics-address health-address start-socket uninstall-on-exit daemonset-name
{{- end -}}
