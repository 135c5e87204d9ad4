# SPDX-License-Identifier: Apache-2.0
# Figures out of lines of JSON, one object a line, as bench/device, device_peers.py, step_latency and sessions print them.
#
#   -v json_only=1     the lines that are objects, with null in place of what is not a number
#   -v table=device    a Markdown table of bench/device's lines
#   -v table=peers     the best peer of each context; what ours does there are the lines that name no peer
#   -v table=fit       "GB/s fixed-us waiter-us", by least squares of relative errors over us_per_step = fixed + bytes / speed;
#                      waiter: median of us_submit_to_done - us_per_step
#   -v table=best      "GB/s context ratio" of the fastest line
#   -v table=service   a Markdown table of step_latency and sessions

function number(line, key,    at) {
    at = index(line, "\"" key "\": ")
    return at ? substr(line, at + length(key) + 4) + 0 : 0
}
function word(line, key,    at, rest) {
    at = index(line, "\"" key "\": \"")
    rest = at ? substr(line, at + length(key) + 5) : ""
    sub(/".*/, "", rest)
    return rest
}
function median(values, n,    i, j, x) { # sorts them
    for (i = 2; i <= n; i++) {
        x = values[i]
        for (j = i - 1; j >= 1 && values[j] > x; j--) values[j + 1] = values[j]
        values[j + 1] = x
    }
    return n % 2 ? values[(n + 1) / 2] : (values[n / 2] + values[n / 2 + 1]) / 2
}

!/^[{].*[}]$/ { next }
json_only {
    gsub(/: -?(nan|inf|NaN|Infinity)/, ": null")
    gsub(/, -?(nan|inf|NaN|Infinity)/, ", null")
    print
    next
}
{
    n++
    kv[n] = word($0, "kv"); context[n] = number($0, "context"); peer[n] = word($0, "peer")
    bytes[n] = number($0, "bytes"); step[n] = number($0, "us_per_step"); done[n] = number($0, "us_submit_to_done")
    rate[n] = number($0, "bytes_per_s") / 1e9; ratio[n] = number($0, "ratio"); ratio_read[n] = number($0, "ratio_read")
    group[n] = number($0, "group"); rows[n] = number($0, "rows"); batch[n] = number($0, "batch")
    heads[n] = number($0, "kv_heads"); dim[n] = number($0, "dim")
    bound[n] = index($0, "\"of_bound\"") ? sprintf("%.3f", number($0, "of_bound")) : "-"
    bench[n] = word($0, "bench"); line[n] = $0
}

table == "device" && n == 1 {
    print "| keys and values | keys | queries a KV head | rows | sequences | KV heads × dims | µs a step | µs to done | GB/s | of a copy | of a read | of the bound |"
    print "|---|---|---|---|---|---|---|---|---|---|---|---|"
}
table == "device" {
    printf "| %s | %d | %d | %d | %d | %d × %d | %.1f | %.1f | %.4g | %.3g | %.3g | %s |\n", kv[n], context[n], group[n], rows[n], batch[n],
        heads[n], dim[n], step[n], done[n], rate[n], ratio[n], ratio_read[n], bound[n]
}
table == "service" && n == 1 {
    print "| what | figure |"
    print "|---|---|"
}
table == "service" && bench[n] == "step_latency" {
    printf "| %s, %d workers | p50 %.0f µs, p99 %.0f µs, %.2f × its floor |\n", word($0, "what"), number($0, "workers"), number($0, "p50_us"),
        number($0, "p99_us"), number($0, "ratio_to_floor")
}
table == "service" && bench[n] == "sessions" {
    printf "| %d sessions, %s, %s, %d workers | %.0f steps/s |\n", number($0, "sessions"), word($0, "mode"), word($0, "geometry"),
        number($0, "workers"), number($0, "steps_per_s")
}

END {
    if (table == "fit" && n >= 2) {
        for (i = 1; i <= n; i++) {
            w = 1 / (step[i] * step[i])
            sw += w; sx += w * bytes[i]; sy += w * step[i]; sxx += w * bytes[i] * bytes[i]; sxy += w * bytes[i] * step[i]
            late[i] = done[i] - step[i]
        }
        slope = (sw * sxx - sx * sx) > 0 ? (sw * sxy - sx * sy) / (sw * sxx - sx * sx) : 0
        if (slope > 0)
            printf "%.4g %.2f %.2f\n", 1e-3 / slope, (sy - slope * sx) / sw, median(late, n)
    }
    if (table == "best" && n >= 1) {
        top = 1
        for (i = 2; i <= n; i++) if (rate[i] > rate[top]) top = i
        printf "%.4g %d %.3g\n", rate[top], context[top], ratio[top]
    }
    if (table == "peers") {
        print "| keys | Banyan, µs a step | fastest peer | µs a step | Banyan is |"
        print "|---|---|---|---|---|"
        for (i = 1; i <= n; i++) {
            if (peer[i] != "") continue
            top = 0
            for (j = 1; j <= n; j++)
                if (peer[j] != "" && context[j] == context[i] && kv[j] == kv[i] && group[j] == group[i] && (!top || step[j] < step[top])) top = j
            if (top)
                printf "| %d | %.1f | %s | %.1f | %.2f × as fast |\n", context[i], step[i], peer[top], step[top], step[top] / step[i]
        }
    }
}
